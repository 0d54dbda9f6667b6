"""Many runs of one static structure: chunks of a batch, spread over cores, devices and hosts."""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pause_jax.config import SimConfig
from pause_jax.engine.quantities import QUANTITIES
from pause_jax.engine.recorder import Quantities, Record, recorded_bytes
from pause_jax.engine.result import Result, finish
from pause_jax.engine.round import advance, init, parts
from pause_jax.engine.simulate import whole_run
from pause_jax.engine.state import State
from pause_jax.latency import LATENCIES
from pause_jax.learning import Execution, Learning
from pause_jax.policies import POLICIES, OneOf
from pause_jax.privacy import MECHANISMS

# Segments a run is played in, so that progress shows, an interrupt is heard and the middle can be
# kept: equal ones, for which one compilation serves, unless that leaves fewer than the least.
SEGMENTS, LEAST_SEGMENTS = 20, 4
# What the clients that train at the same time in a lane may keep, in bytes: runs of more leave the
# cache of a core, and then two of them take longer at once than in turn.
KEPT_IN_LANE = 8 * 2**20
# A rough estimate of what a run takes. Of its state: the old one, the new one, and what the step of
# the scan holds between them. Of its record: what the scan fills, and what it hands over.
STATES, RECORDS = 3, 2
# Of the model, for each client in training: itself, its gradient, two moments, the update, its flat
# form, the noise, the release.
MODELS = 8
RUN, SAME = PartitionSpec("run"), PartitionSpec()


class Programs(NamedTuple):
    """The compiled steps of a batch; every device plays its own runs and hears of no other."""

    init: Any
    advance: Any
    finish: Any


@functools.cache
def programs(mesh: Mesh, quantities: Quantities, execution: Execution) -> Programs:
    """The steps for the devices of a mesh with the one axis ``run``."""

    def spread(step: Callable[..., Any], *specs: PartitionSpec) -> Callable[..., Any]:
        axes = tuple(0 if spec == RUN else None for spec in specs)
        batched = jax.vmap(step, in_axes=axes)
        return jax.shard_map(batched, mesh=mesh, in_specs=specs, out_specs=RUN, check_vma=False)

    def begin(config: SimConfig, data: Any, key: Array, policy: Array) -> State:
        return init(_of_policy(config, policy), data, key)

    def play(
        config: SimConfig, data: Any, state: State, rounds: Array, policy: Array
    ) -> tuple[State, Record]:
        return advance(_of_policy(config, policy), data, state, rounds, quantities, execution)

    def end(config: SimConfig, state: State, record: Record) -> Result:
        return finish(config, state, record, quantities)

    return Programs(
        init=jax.jit(spread(begin, RUN, SAME, RUN, SAME)),
        advance=jax.jit(spread(play, RUN, SAME, RUN, SAME, SAME), donate_argnums=2),
        finish=jax.jit(spread(end, RUN, RUN, RUN)),
    )


def _of_policy(config: SimConfig, number: Array) -> SimConfig:
    """The config with the policy of that number, if it has several: one number for all runs."""
    if isinstance(config.policy, OneOf):
        return config.replace(policy=config.policy.replace(number=number))
    return config


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """A mesh with the one axis ``run``."""
    return Mesh(np.asarray(devices), ("run",))


def lanes_of(mesh: Mesh) -> int:
    """Chunks to play at the same time: one, but on a lone CPU device as many as it has cores.

    XLA splits only large operations over the cores of a CPU; runs do not wait for each other.
    """
    if mesh.size > 1 or mesh.devices.flat[0].platform != "cpu":
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Plan(NamedTuple):
    """How the runs of a group are cut: into chunks of ``batch`` runs, the same number on each
    device; each is played in ``segments`` segments of its rounds, ``lanes`` chunks at a time.
    """

    num_runs: int
    batch: int
    segments: int
    lanes: int

    @property
    def firsts(self) -> range:
        """The first run of each chunk."""
        return range(0, self.num_runs, self.batch)


def plan(
    config: SimConfig,
    data: Any,
    num_runs: int,
    num_devices: int,
    lanes: int,
    quantities: Quantities,
    execution: Execution,
    memory_limit: float,
    max_batch: int | None,
) -> Plan:
    """Cut the runs so that a device keeps to the memory limit.

    Args:
      config: canonical, one of the group.
      data: its data set.
      num_runs: of the group.
      num_devices: over which a chunk is spread.
      lanes: chunks at a time at most, from :func:`lanes_of`.
      quantities: what is recorded.
      execution: how cohorts are trained.
      memory_limit: GiB of a device.
      max_batch: runs at a time at most; from the memory limit if None.
    """
    lanes = min(lanes, num_runs)
    if max_batch is None:
        state = jax.eval_shape(init, config, data, jax.random.key(0))
        fitting = memory_limit * 2**30 / _run_bytes(config, state, quantities)
        lanes = max(1, min(lanes, int(fitting)))
        width = int(fitting / lanes)
        if lanes > 1:
            width = min(width, _cached_width(config, data, state, execution))
        width = max(1, width)
    else:
        lanes = min(lanes, max_batch)
        width = math.ceil(max_batch / lanes / num_devices)
    # As many chunks in every lane, and chunks as equal as can be.
    chunks = lanes * math.ceil(num_runs / (width * num_devices) / lanes)
    batch = num_devices * math.ceil(num_runs / chunks / num_devices)
    segments = max(n for n in range(1, SEGMENTS + 1) if config.num_rounds % n == 0)
    if segments < LEAST_SEGMENTS and config.num_rounds > 2 * SEGMENTS:
        segments = SEGMENTS
    return Plan(num_runs, batch, segments, lanes)


def _run_bytes(config: SimConfig, state: State, quantities: Quantities) -> int:
    """What one run takes of a device's memory, roughly."""
    cohort = config.cohort_size * _bytes(state.learning.variables)
    record = recorded_bytes(quantities, config)
    return max(1, STATES * _bytes(state) + RECORDS * record + MODELS * cohort)


def _cached_width(config: SimConfig, data: Any, state: State, execution: Execution) -> int:
    """Runs side by side in a lane whose clients in training still fit a core's cache."""
    together = min(config.cohort_size, execution.client_batch or config.cohort_size)
    kept = parts(config, data).learner.kept(state.learning) * together
    return KEPT_IN_LANE // max(kept, 1)


def _bytes(tree: Any) -> int:
    leaves = [x for x in jax.tree.leaves(tree) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def check_own_parts(config: SimConfig, data: Any, quantities: Quantities) -> None:
    """Trace parts of the user's own once, so that their mistakes show before any run; those of the
    library are tested.

    Raises:
      Exception: whatever a part raises.
    """
    ours = (
        type(config.policy) in POLICIES
        and type(config.latency) in LATENCIES
        and type(config.privacy) in MECHANISMS
        and type(config.learning) in (Learning, type(None))
        and set(quantities) <= set(QUANTITIES.values())
    )
    if not ours:
        run = functools.partial(whole_run, quantities=quantities)
        jax.eval_shape(run, config, data, jax.random.key(0))


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
    step: Programs,
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
      step: the programs, for the mesh.
      mesh: the devices, of all processes.
      tick: called after each segment, from any thread.
      firsts: the chunks to play, by their first run; all if left out.
      keeper: keeps what was played; nobody if left out.

    Yields:
      (first run, results) of each chunk when it is finished, NumPy arrays with a leading axis,
      without models.
    """
    segments = np.array_split(np.arange(1, configs.num_rounds + 1), cut.segments)
    data = _place(data, mesh, SAME)
    stopped = threading.Event()
    # Held while a step is handed to the device, not while it works: so one lane compiles for all.
    handing_over = threading.Lock()

    def play_chunk(first: int) -> Result:
        if stopped.is_set():
            raise CancelledError
        # The last chunk is filled up with repeated runs, so that its shape compiles nothing new.
        run = np.minimum(np.arange(first, first + cut.batch), cut.num_runs - 1)
        done, records = 0, list[Record]()
        with handing_over:
            config = jax.tree.map(lambda x: x[run // len(keys)], configs)
            config = _place(config, mesh, RUN)
            policy = _place(_policy(configs), mesh, SAME)
            state = step.init(config, data, _place(keys[run % len(keys)], mesh, RUN), policy)
            if keeper is not None:

                def shapes(number: int, state: State = state) -> list[Any]:
                    of = functools.partial(step.advance.eval_shape, config, data, state)
                    return [of(_place(each, mesh, SAME), policy)[1] for each in segments[:number]]

                done, state, records = keeper.goes_on(first, state, shapes)
        for number, segment in enumerate(segments[done:], done + 1):
            if stopped.is_set():
                raise CancelledError
            with handing_over:
                rounds = _place(segment, mesh, SAME)
                state, record = step.advance(config, data, state, rounds, policy)
            records.append(jax.block_until_ready(record))
            tick()
            if keeper is not None and number < len(segments):
                keeper.played(first, number, state, records, ending=stopped.is_set())
        with handing_over:
            record = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *records)
            result = step.finish(config, state, record).replace(variables=None)
        count = min(cut.batch, cut.num_runs - first)
        result = jax.tree.map(lambda x: x[:count], _collect(result))
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


def _policy(configs: SimConfig) -> Array:
    """The number of the policy of all configs of a group; 0 if there is no choice."""
    if isinstance(configs.policy, OneOf):
        return configs.policy.number[0]
    return jnp.zeros((), jnp.int32)


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


def _collect(result: Result) -> Result:
    """All runs as NumPy arrays, in every process.

    Raises:
      RuntimeError: if another process died.
    """
    if jax.tree.leaves(result)[0].is_fully_addressable:
        return jax.tree.map(np.asarray, result)
    try:
        return multihost_utils.process_allgather(result, tiled=True)
    except (RuntimeError, ValueError) as error:  # which one depends on the transport
        raise RuntimeError(
            f"another process died or cannot be reached; see its own output. {error}"
        ) from error
