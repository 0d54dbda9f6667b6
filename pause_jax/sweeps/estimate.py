"""Estimate of a sweep's compilations, memory and time, based on timed runs of its first group."""

from __future__ import annotations

import math
import time

import jax
import numpy as np

from pause_jax.run.programs import state_shapes
from pause_jax.sweeps.batch import run_chunks, spec_of
from pause_jax.sweeps.plan import SEGMENTS, SweepPlan, run_bytes, shapes_of


def estimate(plan: SweepPlan, *, times: int = 1, values: int = 1) -> str:
    """Describe the compiled programs, memory and time that a sweep needs.

    The time is measured for the first group and extrapolated to the other groups.

    Args:
      plan: plan of a sweep, or of one generation of a search.
      times: number of generations.
      values: number of combinations of static values. Each combination needs separate programs.
    """
    programs = set()
    memory = trained = 0.0
    for number, (group, chunking) in enumerate(zip(plan.groups, plan.chunkings, strict=True)):
        config, data = group[0].config, group[0].data
        spec = spec_of(plan, number)
        structure = jax.tree.structure(spec.config_of(config))
        programs.add((structure, shapes_of(data), spec, chunking.batch))
        one = run_bytes(config, state_shapes(config, data), plan.quantities)
        memory = max(memory, one * chunking.batch * chunking.threads / plan.mesh.size)
        waves = math.ceil(len(chunking.firsts) / chunking.threads)
        trained += waves * config.num_rounds * config.cohort_size
    first = plan.groups[0][0]
    # A round may take minutes with a large model, but only microseconds without learning.
    rounds = min(3, first.config.num_rounds)
    compiling, seconds = _seconds(plan, rounds)
    while seconds < 1 and rounds < first.config.num_rounds:
        rounds = min(10 * rounds, first.config.num_rounds)
        _, seconds = _seconds(plan, rounds)
    running = times * seconds * trained / (rounds * first.config.cohort_size)
    number = values * len(programs)
    lengths = sorted({each.config.num_rounds for each in plan.configs})
    return (
        f"configs: {times * len(plan.configs)}, seeds: {len(plan.keys)}, rounds: "
        f"{' or '.join(map(str, lengths))}, chunks: {times * len(plan.chunks)}\n"
        f"programs to compile: {number}, about {compiling:.2g} s each\n"
        f"memory in use, excluding data: about {memory / 2**30:.2g} GiB\n"
        f"time: about {number * compiling + running:.2g} s, extrapolated from {rounds} rounds of "
        f"{first.label!r}"
    )


def _seconds(plan: SweepPlan, num_rounds: int) -> tuple[float, float]:
    """Time the first group's first chunks, and return (seconds to compile, seconds to run)."""
    members = [
        each._replace(config=each.config.replace(num_rounds=num_rounds)) for each in plan.groups[0]
    ]
    chunking = plan.chunkings[0]._replace(segments=min(SEGMENTS, num_rounds))
    short = plan._replace(groups=[members], chunkings=[chunking])
    times = [time.perf_counter()]
    for _ in range(2):
        list(run_chunks(short, short.chunks[: chunking.threads], lambda segments: None))
        times.append(time.perf_counter())
    first, second = np.diff(times)
    return max(first - second, 0.0), second
