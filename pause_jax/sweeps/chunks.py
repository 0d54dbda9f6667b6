"""How the runs of a sweep are cut into chunks that fit the memory and the caches."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from pause_jax.base.memory import tree_bytes
from pause_jax.config import SimConfig
from pause_jax.learning import Execution
from pause_jax.run.programs import state_shapes
from pause_jax.run.record.recorder import Quantities, recorded_bytes
from pause_jax.run.rounds.state import State
from pause_jax.run.setup import learner_of

# Segments of a run: after each, progress shows, an interrupt is noticed, a checkpoint can be saved.
SEGMENTS = 20
# Bytes that the clients which train at the same time in a thread may keep: runs of more leave the
# cache of a core, and then two of them take longer at once than in turn.
KEPT_IN_THREAD = 8 * 2**20
# Runs side by side: one of these. In a thread of a CPU, by the number of all runs.
WIDTHS = (1, 2, 4, *(2**n // 4 * part for n in range(3, 31) for part in (4, 6)))
IN_THREAD = ((64, 512), (16, 128), (4, 32), (1, 0))
# A rough estimate of what a run takes. Of its state: the old one, the new one, and what the step of
# the loop holds between them. Of its record: what the loop fills, and what it hands over.
STATES, RECORDS = 3, 2
# Of the model, for each client in training: itself, its gradient, two moments, the update, its flat
# form, the noise, the release.
MODELS = 8


def threads_of(mesh: Mesh) -> int:
    """Chunks to run at the same time: one, but on a lone CPU device as many as it has cores.

    XLA splits only large operations over the cores of a CPU; runs do not wait for each other.
    """
    if mesh.size > 1 or mesh.devices.flat[0].platform != "cpu":
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Chunking(NamedTuple):
    """How the runs of a group are cut: into chunks of ``batch`` runs, the same number on each
    device; each runs in ``segments`` segments of its rounds, ``threads`` chunks at a time.
    """

    num_runs: int
    batch: int
    segments: int
    threads: int

    @property
    def firsts(self) -> range:
        """The first run of each chunk."""
        return range(0, self.num_runs, self.batch)


class Limits(NamedTuple):
    """What the runs of a group may take.

    Attributes:
      num_devices: over which a chunk is spread.
      threads: chunks at a time at most, from :func:`threads_of`.
      memory: GiB of a device.
      max_batch: runs at a time at most; from the memory if None.
    """

    num_devices: int
    threads: int
    memory: float
    max_batch: int | None


def chunking_of(
    config: SimConfig,
    data: Any,
    num_runs: int,
    quantities: Quantities,
    execution: Execution,
    limits: Limits,
) -> Chunking:
    """Cut the runs of a group so that a device keeps to the limits.

    Args:
      config: canonical, one of the group.
      data: its data set.
      num_runs: of the group.
      quantities: what is recorded.
      execution: how cohorts are trained.
      limits: what they may take.
    """
    threads = min(limits.threads, num_runs)
    if limits.max_batch is None:
        state = state_shapes(config, data)
        fitting = limits.memory * 2**30 / _run_bytes(config, state, quantities)
        threads = max(1, min(threads, int(fitting)))
        width = int(fitting / threads)
        if threads > 1:
            width = min(width, _cached_width(config, data, state, execution))
        width = max(1, width)
    else:
        threads = min(threads, limits.max_batch)
        width = math.ceil(limits.max_batch / threads / limits.num_devices)
    on_each = math.ceil(num_runs / limits.num_devices)
    batch = limits.num_devices * _few_widths(on_each, width, threads)
    return Chunking(num_runs, batch, min(SEGMENTS, config.num_rounds), threads)


def _few_widths(num_runs: int, most: int, threads: int) -> int:
    """Runs side by side in a thread, at most ``most``, of ``num_runs`` that a device runs: one
    of few numbers, so that a few more seeds or values run by the program that there is.
    """
    if threads > 1:
        # Side by side is faster for small runs only, and then there are many of them.
        wanted = next(width for width, runs in IN_THREAD if num_runs >= runs)
    else:
        wanted = next(width for width in WIDTHS if width >= num_runs)
    return next(width for width in reversed(WIDTHS) if width <= min(wanted, most))


def _run_bytes(config: SimConfig, state: State, quantities: Quantities) -> int:
    """What one run takes of a device's memory, roughly."""
    cohort = config.cohort_size * _bytes(state.learning.variables)
    record = recorded_bytes(quantities, config)
    return max(1, STATES * _bytes(state) + RECORDS * record + MODELS * cohort)


def _cached_width(config: SimConfig, data: Any, state: State, execution: Execution) -> int:
    """Runs side by side in a thread whose clients in training still fit a core's cache."""
    together = min(config.cohort_size, execution.client_batch or config.cohort_size)
    kept = learner_of(config, data).client_bytes(state.learning) * together
    return KEPT_IN_THREAD // max(kept, 1)


def _bytes(tree: Any) -> int:
    leaves = [x for x in jax.tree.leaves(tree) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return tree_bytes(leaves)
