"""Many runs of one static structure: chunks of a batch, spread over cores, devices and hosts."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pause_jax.config import SimConfig
from pause_jax.learning import Execution
from pause_jax.policies import OneOf
from pause_jax.run.compilation import kept
from pause_jax.run.programs import RUN, SAME, programs, reduced_part, seen_by, shape_of, told_of
from pause_jax.run.record.recorder import Quantities, Record
from pause_jax.run.record.result import Result, completed
from pause_jax.run.state import State, check_for_nan
from pause_jax.sweep.chunks import Plan


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """A mesh with the one axis ``run``."""
    return Mesh(np.asarray(devices), ("run",))


class Keeper(Protocol):
    """Keeps what was played of a chunk. Its methods are called from the threads of the lanes."""

    def goes_on(
        self, first: int, state: State, shapes: Callable[[int], list[Any]]
    ) -> tuple[int, State, list[Record]]:
        """Segments that were played before, and state and records after them; 0 and the state as it
        is if none. ``shapes`` of so many segments are those of their records.
        """

    def played(
        self, first: int, segments: int, state: State, records: list[Record], *, ending: bool
    ) -> None:
        """So many segments are played; ``ending`` if someone has asked to stop after them."""

    def finished(self, first: int, result: Result) -> None:
        """The chunk is finished."""


def play(
    configs: SimConfig,
    data: Any,
    keys: Array,
    cut: Plan,
    quantities: Quantities,
    execution: Execution,
    mesh: Mesh,
    tick: Callable[[], object],
    firsts: Sequence[int] | None = None,
    keeper: Keeper | None = None,
) -> Iterator[tuple[int, Result]]:
    """Play the runs of a group, config-major, chunk after chunk.

    Args:
      configs: canonical, stacked [C].
      data: the data set of all.
      keys: typed keys [S].
      cut: from :func:`plan` for C S runs.
      quantities: what is recorded.
      execution: how cohorts are trained.
      mesh: the devices, of all processes.
      tick: called after each segment, from any thread.
      firsts: the chunks to play, by their first run; all if left out.
      keeper: keeps what was played; nobody if left out.

    Yields:
      (first run, results) of each chunk when it is finished, NumPy arrays with a leading axis,
      without models.
    """
    segments = np.array_split(np.arange(1, configs.num_rounds + 1), cut.segments)
    shape = shape_of(configs, quantities, len(segments[0]))
    alone = cut.batch == 1 and _is_default(mesh)
    step = programs(None if alone else mesh, quantities, execution, shape.any_length)
    # On the host: so that neither a number of seeds nor one of values has programs of its own.
    configs, key_data = jax.tree.map(np.asarray, (configs, jax.random.key_data(keys)))
    stopped = threading.Event()
    # Held while a step is handed to the device, not while it works: so one lane compiles for all.
    handing_over = threading.Lock()

    def put(tree: Any, spec: PartitionSpec) -> Any:
        if alone:
            return tree if spec == SAME else jax.tree.map(lambda x: x[0], tree)
        return _place(tree, mesh, spec)

    def taken(tree: Any) -> Any:
        return jax.tree.map(_in_front, tree) if alone else tree

    data, policy = put((data, _policy(configs)), SAME)

    def told(segment: np.ndarray) -> tuple[Any, ...]:
        return *put(told_of(configs, shape, segment[0], len(segment)), SAME), policy

    def play_chunk(first: int) -> Result:
        if stopped.is_set():
            raise CancelledError
        # The last chunk is filled up with repeated runs, so that its shape compiles nothing new.
        run = np.minimum(np.arange(first, first + cut.batch), cut.num_runs - 1)
        own = jax.tree.map(lambda x: x[run // len(keys)], configs)
        done, records = 0, list[Any]()
        with handing_over:
            config = put(seen_by(shape, own), RUN)
            key = put(key_data[run % len(keys)], RUN)
            key = jax.random.wrap_key_data(key, impl=jax.random.key_impl(keys))
            with kept():
                state = step.init(config, data, key, policy)
            advance = step.advance(config, state)
            if keeper is not None:

                def shapes(number: int, state: State = state) -> list[Any]:
                    of = functools.partial(advance.eval_shape, config, data, state)
                    return [
                        _cut(taken(of(*told(each))[1]), len(each)) for each in segments[:number]
                    ]

                done, state, records = keeper.goes_on(first, state, shapes)
        for number, segment in enumerate(segments[done:], done + 1):
            if stopped.is_set():
                raise CancelledError
            with handing_over, kept():
                state, record = advance(config, data, state, *told(segment))
            records.append(_cut(taken(jax.block_until_ready(record)), len(segment)))
            check_for_nan(state, f"{segment[0]} to {segment[-1]}")
            tick()
            if keeper is not None and number < len(segments):
                keeper.played(first, number, state, records, ending=stopped.is_set())
        record = _whole(_collect(records), segments)
        with handing_over, kept():
            reduced = put(reduced_part(quantities, configs, record, shape), RUN)
            result = step.finish(config, state, reduced).replace(config=None, variables=None)
        result = _rows(_collect(taken(result)), own, record, quantities)
        result = jax.tree.map(lambda x: x[: cut.num_runs - first], result)
        if keeper is not None:
            keeper.finished(first, result)
        return result

    with ThreadPoolExecutor(cut.lanes) as lanes:
        try:
            running = {
                lanes.submit(play_chunk, first): first
                for first in (cut.firsts if firsts is None else firsts)
            }
            for chunk in as_completed(running):
                yield running.pop(chunk), chunk.result()
        finally:
            stopped.set()


def _policy(configs: SimConfig) -> Any:
    """The number of the policy of all configs of a group; 0 if there is no choice."""
    if isinstance(configs.policy, OneOf):
        return configs.policy.number[0]
    return np.int32(0)


def _is_default(mesh: Mesh) -> bool:
    """Whether the only device is the one that a single run takes."""
    device = jax.config.values["jax_default_device"] or jax.local_devices()[0]
    return jax.process_count() == 1 and mesh.devices.tolist() == [device]


def _in_front(x: Any) -> Any:
    """One run as a batch of one."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((1, *x.shape), x.dtype)
    return np.asarray(x)[None]


def _rows(result: Result, configs: SimConfig, record: Any, quantities: Quantities) -> Result:
    """The results of N runs with what was recorded in their rounds, leaves [N, ...]."""
    rows = []
    for i in range(len(result.eval_rounds)):
        one, config, mine = jax.tree.map(lambda x, i=i: x[i], (result, configs, record))
        rows.append(completed(one, config, one.eval_rounds, mine, quantities))
    return jax.tree.map(lambda *x: np.stack(x), *rows)


def _cut(record: Any, count: int) -> Any:
    """The rounds of a record [N, R, ...] that were played; on the host, if it has all runs."""

    def cut(x: Any) -> Any:
        if isinstance(x, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct((len(x), count, *x.shape[2:]), x.dtype)
        here = getattr(x, "is_fully_addressable", True)
        return np.asarray(x)[:, :count] if here else x

    return jax.tree.map(cut, record)


def _whole(records: list[Any], segments: list[np.ndarray]) -> Any:
    """The record of all rounds [N, T, ...] from those of the segments."""
    counts = map(len, segments)
    parts = [_cut(record, count) for record, count in zip(records, counts, strict=True)]
    return jax.tree.map(lambda *x: np.concatenate(x, axis=1), *parts)


def _place(tree: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    """Put arrays that every process has whole on the devices of the mesh."""
    sharding = NamedSharding(mesh, spec)
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def place(x: Any) -> Array:
        if isinstance(x, Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                place(jax.random.key_data(x)), impl=jax.random.key_impl(x)
            )
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(place, tree)


def _collect(result: Any) -> Any:
    """All runs as NumPy arrays, in every process.

    Raises:
      RuntimeError: if another process died.
    """
    if all(getattr(leaf, "is_fully_addressable", True) for leaf in jax.tree.leaves(result)):
        return jax.tree.map(np.asarray, result)
    try:
        return multihost_utils.process_allgather(result, tiled=True)
    except (RuntimeError, ValueError) as error:  # which one depends on the transport
        raise RuntimeError(
            f"another process died or cannot be reached; see its own output. {error}"
        ) from error
