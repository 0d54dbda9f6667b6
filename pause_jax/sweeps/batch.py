"""Many runs of one static structure: chunks of a batch, spread over cores, devices and hosts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pause_jax.base.compilation import compiling
from pause_jax.config import SimConfig
from pause_jax.learning import Execution
from pause_jax.policies import OneOf
from pause_jax.run.driver import Runs, Watch, drive
from pause_jax.run.programs import RUN, SAME, compiled_steps, program_spec
from pause_jax.run.record.recorder import Quantities, Record
from pause_jax.run.record.result import Result, with_rounds
from pause_jax.run.rounds.state import State
from pause_jax.sweeps.chunks import Chunking


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    """A mesh with the one axis ``run``."""
    return Mesh(np.asarray(devices), ("run",))


class Keeper(Protocol):
    """Keeps chunks in a store. Its methods are called from worker threads."""

    def claimed(self, first: int) -> bool:
        """Whether this process is to run the chunk: asked right before it starts."""

    def resumed(
        self, first: int, state: State, shapes: Callable[[int], list[Any]]
    ) -> tuple[int, State, list[Record]]:
        """Return the segments that ran before, and state and records after them; 0 and the state as
        it is if none. ``shapes`` of so many segments are those of their records.
        """

    def checkpoint(
        self, first: int, segments: int, state: State, records: list[Record], *, ending: bool
    ) -> None:
        """Take note that so many segments ran; ``ending`` if the sweep stops after them."""

    def finished(self, first: int, result: Result) -> None:
        """Take note that the chunk is finished."""


class Batch(NamedTuple):
    """The runs of a group, config-major.

    Attributes:
      configs: canonical, stacked [C].
      data: the data set of all.
      keys: typed keys [S].
      chunking: how the C S runs are cut into chunks.
      quantities: what is recorded.
      execution: how cohorts are trained.
      mesh: the devices, of all processes.
    """

    configs: SimConfig
    data: Any
    keys: Array
    chunking: Chunking
    quantities: Quantities
    execution: Execution
    mesh: Mesh


def run_chunks(
    batch: Batch,
    tick: Callable[[], object],
    firsts: Sequence[int] | None = None,
    keeper: Keeper | None = None,
) -> Iterator[tuple[int, Result]]:
    """Run a batch, chunk after chunk.

    Args:
      batch: the runs.
      tick: called after each segment, from any thread.
      firsts: the chunks to run, by their first run; all if left out.
      keeper: keeps chunks, and may leave some to another process; nobody if left out.

    Yields:
      (first run, results) of each chunk when it is finished, NumPy arrays with a leading axis,
      without models.
    """
    stopped, handing_over = threading.Event(), threading.Lock()
    # On the host: so that neither a number of seeds nor one of values has programs of its own.
    configs, key_data = jax.tree.map(np.asarray, (batch.configs, jax.random.key_data(batch.keys)))
    chunk_of = _chunks(batch._replace(configs=configs), key_data)

    def run_chunk(first: int) -> Result | None:
        if stopped.is_set():
            raise CancelledError
        if keeper is not None and not keeper.claimed(first):
            return None
        with handing_over:
            runs, own = chunk_of(first)
        ended, record = drive(runs, _ThreadWatch(stopped, handing_over, tick, first, keeper))
        result = _rows(ended, record, own, runs.batched, batch.quantities)
        result = jax.tree.map(lambda x: x[: batch.chunking.num_runs - first], result)
        if keeper is not None:
            keeper.finished(first, result)
        return result

    with ThreadPoolExecutor(batch.chunking.threads) as threads:
        try:
            running = {
                threads.submit(run_chunk, first): first
                for first in (batch.chunking.firsts if firsts is None else firsts)
            }
            for chunk in as_completed(running):
                first, finished = running.pop(chunk), chunk.result()
                if finished is not None:
                    yield first, finished
        finally:
            stopped.set()


def _chunks(batch: Batch, key_data: np.ndarray) -> Callable[[int], tuple[Runs, SimConfig]]:
    """Return a function from a chunk's first run to (the chunk, the configs of its runs)."""
    configs, chunking, num_seeds = batch.configs, batch.chunking, len(batch.keys)
    parts = np.array_split(np.arange(1, configs.num_rounds + 1), chunking.segments)
    spec = program_spec(
        jax.tree.map(lambda x: x[0], configs),
        batch.data,
        batch.quantities,
        longest=len(parts[0]),
        num_runs=chunking.batch,
    )
    alone = chunking.batch == 1 and _is_default(batch.mesh)
    mesh = None if alone else batch.mesh
    steps = compiled_steps(spec, batch.quantities, batch.execution, mesh)

    def put(tree: Any, spec: PartitionSpec) -> Any:
        if mesh is not None:
            return _place(tree, mesh, spec)
        return tree if spec == SAME else jax.tree.map(lambda x: x[0], tree)

    data, policy = put((batch.data, _policy(configs)), SAME)
    segments = [put(spec.segment(configs, int(part[0]), len(part)), SAME) for part in parts]

    def chunk(first: int) -> tuple[Runs, SimConfig]:
        # The last chunk is filled up with repeated runs, so that its shape compiles nothing new.
        run = np.minimum(np.arange(first, first + chunking.batch), chunking.num_runs - 1)
        own = jax.tree.map(lambda x: x[run // num_seeds], configs)
        key = put(key_data[run % num_seeds], RUN)
        runs = Runs(
            steps=steps,
            config=put(spec.config_of(own), RUN),
            data=data,
            key=jax.random.wrap_key_data(key, impl=jax.random.key_impl(batch.keys)),
            policy=policy,
            segments=segments,
            batched=not alone,
        )
        return runs, own

    return chunk


class _ThreadWatch(Watch):
    """Watches a chunk in one of several threads, any of which may be asked to stop."""

    def __init__(
        self,
        stopped: threading.Event,
        handing_over: threading.Lock,
        tick: Callable[[], object],
        first: int,
        keeper: Keeper | None,
    ):
        self._stopped, self._handing_over, self._tick = stopped, handing_over, tick
        self._first, self._keeper = first, keeper

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        # Held while a step is handed to the device, not while it works: one compiles for all.
        with self._handing_over, compiling():
            yield

    def resumed(
        self, state: State, shapes: Callable[[int], list[Any]]
    ) -> tuple[int, State, list[Record]]:
        if self._keeper is None:
            return super().resumed(state, shapes)
        with self._handing_over:
            return self._keeper.resumed(self._first, state, shapes)

    def played(self, segments: int, left: int, state: State, records: list[Record]) -> None:
        self._tick()
        if not left:
            return
        ending = self._stopped.is_set()
        if self._keeper is not None:
            self._keeper.checkpoint(self._first, segments, state, records, ending=ending)
        if ending:
            raise CancelledError


def _policy(configs: SimConfig) -> Any:
    """The number of the policy of all configs of a group; 0 if there is no choice."""
    if isinstance(configs.policy, OneOf):
        return configs.policy.number[0]
    return np.int32(0)


def _is_default(mesh: Mesh) -> bool:
    """Whether the only device is the one that a single run takes."""
    device = jax.config.values["jax_default_device"] or jax.local_devices()[0]
    return jax.process_count() == 1 and mesh.devices.tolist() == [device]


def _rows(
    ended: Result, record: Record, configs: SimConfig, batched: bool, quantities: Quantities
) -> Result:
    """The results of N runs, leaves [N, ...], without models."""
    ended = jax.tree.map(np.asarray, ended.replace(config=None, variables=None))
    if not batched:
        ended, record = jax.tree.map(lambda x: x[None], (ended, record))
    rows = []
    for i in range(len(ended.eval_rounds)):
        one, config, mine = jax.tree.map(lambda x, i=i: x[i], (ended, configs, record))
        rows.append(with_rounds(one, config, mine, quantities))
    return jax.tree.map(lambda *x: np.stack(x), *rows)


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
