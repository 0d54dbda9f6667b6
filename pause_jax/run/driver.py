"""The driver of every run: a single one, a traced one, or a chunk of a sweep."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from pause_jax.base.compilation import compiling
from pause_jax.config import SimConfig
from pause_jax.learning import Execution
from pause_jax.run.host import check_for_nan, collected, first_rounds, is_traced, joined
from pause_jax.run.programs import ProgramSpec, Steps, compiled_steps, plain_steps, program_spec
from pause_jax.run.record.recorder import Quantities, Record
from pause_jax.run.record.result import Result, with_rounds
from pause_jax.run.rounds.state import State


class Runs(NamedTuple):
    """Runs that are played together, as the steps take them.

    Attributes:
      steps: of one run, or of a batch.
      config, data, key, policy: the steps' arguments.
      segments: the round numbers of each call.
      call: a segment -> the other arguments of ``Steps.advance``.
      batched: whether leaves have a leading axis of runs.
    """

    steps: Steps
    config: SimConfig
    data: Any
    key: Array
    policy: Any
    segments: Sequence[np.ndarray]
    call: Callable[[np.ndarray], tuple[Any, ...]]
    batched: bool


class Watch:
    """What happens around the calls of the driver; in a single run, only a line on a terminal."""

    def calling(self) -> AbstractContextManager[None]:
        """Surround each call of a step, which may compile."""
        return compiling()

    def resumed(
        self, state: State, shapes: Callable[[int], list[Any]]
    ) -> tuple[int, State, list[Record]]:
        """Return the segments that were played before, and state and records after them.

        Args:
          state: before round 1.
          shapes: of so many segments' records.
        """
        return 0, state, []

    def played(self, segments: int, left: int, state: State, records: list[Record]) -> None:
        """Take note that so many segments are played; what it raises ends the runs."""


def drive(runs: Runs, watch: Watch) -> tuple[Result, Record]:
    """Play runs from their start, or where they were left, to their end.

    Returns:
      (results at the end, record of all rounds [T, ...] or [N, T, ...]), on the host.

    Raises:
      FloatingPointError: if ``jax_debug_nans`` is on and a model holds NaN.
      RuntimeError: if another process died.
    """
    given, cut = (runs.config, runs.data), functools.partial(first_rounds, batched=runs.batched)
    with watch.calling():
        state = runs.steps.first(*given, runs.key, runs.policy)
    advance = runs.steps.advance(runs.config, state)

    # For a chunk that goes on where it was stopped; of the state here, which the loop replaces.
    def shapes(segments: int, state: State = state) -> list[Any]:
        of = functools.partial(advance.eval_shape, *given, state)
        return [
            cut(of(*runs.call(segment), runs.policy)[1], len(segment))
            for segment in runs.segments[:segments]
        ]

    done, state, records = watch.resumed(state, shapes)
    for number, segment in enumerate(runs.segments[done:], done + 1):
        with watch.calling():
            state, record = advance(*given, state, *runs.call(segment), runs.policy)
        record = jax.block_until_ready(record)
        records.append(cut(record, len(segment)))
        check_for_nan(state, f"{segment[0]} to {segment[-1]}")
        watch.played(number, len(runs.segments) - number, state, records)
    with watch.calling():
        result = runs.steps.finish(runs.config, state)
    return result, joined(collected(records), runs.segments, batched=runs.batched)


def single_run(
    config: SimConfig,
    data: Any,
    key: Array,
    quantities: Quantities,
    execution: Execution | None = None,
) -> Result:
    """Play a prepared run: by compiled steps, in as many calls as it needs; in one call in a trace.

    Args:
      config: canonical config.
      data: its data set.
      key: typed key.
      quantities: what is recorded.
      execution: how cohorts are trained.
    """
    traced = is_traced(config, data, key)
    if traced:
        spec = ProgramSpec(room=config.num_rounds, any_length=False)
        steps = plain_steps(quantities, execution, spec.any_length)
    else:
        spec = program_spec(config, quantities)
        steps = compiled_steps(None, quantities, execution or Execution(), spec.any_length)
    starts = range(spec.room, config.num_rounds, spec.room)
    runs = Runs(
        steps=steps,
        config=spec.config_of(config),
        data=data,
        key=key,
        policy=np.int32(0),
        segments=np.split(np.arange(1, config.num_rounds + 1), starts),
        call=functools.partial(spec.call_arguments, config),
        batched=False,
    )
    result, record = drive(runs, Watch())
    if traced:
        return with_rounds(result, config, record, quantities)
    result = result.replace(eval_rounds=np.asarray(result.eval_rounds))
    return jax.device_put(with_rounds(result, config, record, quantities))
