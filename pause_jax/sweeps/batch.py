"""Batched, parallel execution of runs with the same static structure."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pause_jax.base.stopping import as_completed
from pause_jax.config import SimConfig
from pause_jax.policies import OneOf
from pause_jax.run.driver import Runs, Watch, drive
from pause_jax.run.programs import RUN, SAME, ProgramSpec, compiled_steps, program_spec
from pause_jax.run.record.result import Quantities, Record, Result, with_rounds
from pause_jax.run.rounds.state import State
from pause_jax.sweeps.labels import Rows, rows_of
from pause_jax.sweeps.plan import Chunk, SweepPlan
from pause_jax.sweeps.store import LOG, Checkpoint, Point, Store


def run_chunks(
    plan: SweepPlan,
    chunks: Sequence[Chunk],
    tick: Callable[[int], object],
    store: Store | None = None,
) -> Iterator[tuple[Chunk, Rows]]:
    """Run chunks of one group, and yield each chunk with its rows when it finishes.

    Worker threads call ``tick`` with the number of newly finished segments.
    """
    stopped = threading.Event()
    handing_over = threading.Lock()
    chunking = plan.chunkings[chunks[0].group]
    runs_of = _runs_of(plan, chunks[0].group)

    def run_chunk(chunk: Chunk) -> tuple[Chunk, Rows]:
        if stopped.is_set():
            raise CancelledError
        with handing_over:
            runs, configs = runs_of(chunk.first)
        checkpoint = None if store is None else Checkpoint(store, chunk)
        end, record = drive(runs, _ThreadWatch(stopped, handing_over, tick, checkpoint))
        result = _results(end, record, configs, runs.batched, plan.quantities)
        number = len(chunking.runs(chunk.first))
        rows = rows_of(jax.tree.map(lambda x: x[:number], result))
        if store is not None:
            store.save(chunk, rows)  # save now, because the sweep may stop before the yield
        return chunk, rows

    with ThreadPoolExecutor(min(chunking.threads, len(chunks))) as threads:
        try:
            for finished in as_completed([threads.submit(run_chunk, chunk) for chunk in chunks]):
                yield finished.result()
        finally:
            stopped.set()


def spec_of(plan: SweepPlan, group: int) -> ProgramSpec:
    """Return the spec of the program that runs a group's chunks."""
    first, *_ = plan.groups[group]
    chunking = plan.chunkings[group]
    longest = math.ceil(first.config.num_rounds / chunking.segments)
    return program_spec(
        first.config, first.data, plan.quantities, longest=longest, num_runs=chunking.batch
    )


def _runs_of(plan: SweepPlan, group: int) -> Callable[[int], tuple[Runs, SimConfig]]:
    """Return a function that maps the index of a chunk's first run to (runs, configs)."""
    members = plan.groups[group]
    chunking = plan.chunkings[group]
    # Stack on the host. On a device, each distinct number of configs would require a compilation.
    configs = jax.tree.map(lambda *x: np.stack(x), *(each.config for each in members))
    key_data = np.asarray(jax.random.key_data(plan.keys))
    parts = np.array_split(np.arange(1, configs.num_rounds + 1), chunking.segments)
    spec = spec_of(plan, group)
    default = jax.config.values["jax_default_device"] or jax.local_devices()[0]
    alone = chunking.batch == 1 and plan.mesh.devices.tolist() == [default]
    mesh = None if alone else plan.mesh
    steps = compiled_steps(spec, plan.quantities, plan.execution, mesh)

    def put(tree: Any, axes: PartitionSpec) -> Any:
        if mesh is not None:
            return jax.device_put(tree, NamedSharding(mesh, axes))
        return tree if axes == SAME else jax.tree.map(lambda x: x[0], tree)

    number = configs.policy.number[0] if isinstance(configs.policy, OneOf) else np.int32(0)
    data, policy = put((members[0].data, number), SAME)
    segments = [put(spec.segment(configs, int(part[0]), len(part)), SAME) for part in parts]

    def runs_of(first: int) -> tuple[Runs, SimConfig]:
        # Pad the last chunk with copies of its final run, to avoid compiling a second program.
        run = np.minimum(np.arange(first, first + chunking.batch), chunking.num_runs - 1)
        run_configs = jax.tree.map(lambda x: x[run // len(plan.keys)], configs)
        key = put(key_data[run % len(plan.keys)], RUN)
        runs = Runs(
            steps=steps,
            config=put(spec.config_of(run_configs), RUN),
            data=data,
            key=jax.random.wrap_key_data(key, impl=jax.random.key_impl(plan.keys)),
            policy=policy,
            segments=segments,
            batched=not alone,
        )
        return runs, run_configs

    return runs_of


@dataclasses.dataclass
class _ThreadWatch(Watch):
    """Driver hooks that handle a chunk's progress, checkpoints and cancellation."""

    stopped: threading.Event
    handing_over: threading.Lock
    tick: Callable[[int], object]
    checkpoint: Checkpoint | None

    def calling(self) -> contextlib.AbstractContextManager[Any]:
        # Only one thread at a time compiles or dispatches a step. Steps run without the lock.
        return self.handing_over

    def resumed(
        self, state: State, shapes: Callable[[int], list[Any]]
    ) -> tuple[int, State, list[Record]]:
        if self.checkpoint is None:
            return super().resumed(state, shapes)
        with self.handing_over:
            point = self.checkpoint.restored(state, shapes)
        if point is None:
            return super().resumed(state, shapes)
        LOG.info("Resuming a chunk after segment %d.", point.segments)
        self.tick(point.segments)
        return point

    def played(self, segments: int, left: int, state: State, records: list[Record]) -> None:
        self.tick(1)
        if not left:
            return
        stopped = self.stopped.is_set()
        if self.checkpoint is not None:
            save = self.checkpoint.save if stopped else self.checkpoint.save_if_due
            save(Point(segments, state, records))
        if stopped:
            raise CancelledError


def _results(
    end: Result, record: Record, configs: SimConfig, batched: bool, quantities: Quantities
) -> Result:
    """Return the results of N runs as arrays [N, ...], without configs or models."""
    end = jax.tree.map(np.asarray, end.replace(config=None, variables=None))
    if not batched:
        end, record = jax.tree.map(lambda x: x[None], (end, record))
    results = []
    for i in range(len(end.eval_rounds)):
        run_end, config, run_record = jax.tree.map(lambda x, i=i: x[i], (end, configs, record))
        results.append(with_rounds(run_end, config, run_record, quantities))
    return jax.tree.map(lambda *x: np.stack(x), *results)
