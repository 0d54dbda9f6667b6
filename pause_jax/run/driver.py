"""Drivers for compiled single runs, for sweep chunks, and for runs inside a user's JAX trace."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.compilation import telling, use_cache
from pause_jax.config import SimConfig
from pause_jax.learning import Execution
from pause_jax.run.preflight import warn_if_cut, warn_if_far
from pause_jax.run.programs import Segment, Steps, compiled_steps, plain_steps, program_spec
from pause_jax.run.record.result import Quantities, Record, Result, with_rounds
from pause_jax.run.rounds.horizon import length_of
from pause_jax.run.rounds.state import State


class Runs(NamedTuple):
    """Runs that advance together, and the arguments of their step functions.

    Attributes:
      segments: consecutive segments of rounds, one for each call to ``Steps.advance``.
      batched: whether ``config`` and ``key`` have a leading run axis.
    """

    steps: Steps
    config: SimConfig
    data: Any
    key: Array
    policy: Any
    segments: Sequence[Segment]
    batched: bool


class Watch:
    """Driver hooks. The defaults are for single runs, which are never saved or resumed."""

    def calling(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager for one call to a step function, including any compilation."""
        return telling()

    def resumed(
        self, state: State, shapes: Callable[[int], list[Any]]
    ) -> tuple[int, State, list[Record]]:
        """Return (number of finished segments, state after these segments, their records).

        Args:
          state: state before round 1.
          shapes: function that maps n to the shapes and dtypes of the first n segments' records.
        """
        return 0, state, []

    def played(self, segments: int, left: int, state: State, records: list[Record]) -> None:
        """Handle the end of a segment. Raising an exception stops the runs."""


def drive(runs: Runs, watch: Watch) -> tuple[Result, Record]:
    """Advance runs to completion, starting from the state that ``watch.resumed`` returns.

    Returns (result, record). The per-round quantities are only in the record, as NumPy arrays
    [T, ...], or [N, T, ...] if batched. Raises FloatingPointError if ``jax_debug_nans`` is enabled
    and a model becomes non-finite.
    """
    use_cache()
    steps = runs.steps
    batched = runs.batched
    inputs = (runs.config, runs.data)
    with _calling(watch):
        state, fastest = steps.init(*inputs, runs.key, runs.policy)
    warn_if_far(runs.config.latency.min_latency, fastest)
    warn_if_cut(runs.config, state.learning.partition.size)

    def shapes(segments: int, state: State = state) -> list[Any]:
        found = []
        for segment in runs.segments[:segments]:
            # jax.eval_shape would call jit within a trace, where JAX forbids compiler options.
            _, rows = steps.advance.eval_shape(*inputs, state, segment, runs.policy)
            first_rounds = functools.partial(_first_rounds, segment=segment, batched=batched)
            found.append(jax.eval_shape(first_rounds, rows))
        return found

    done, state, records = watch.resumed(state, shapes)
    for number, segment in enumerate(runs.segments[done:], done + 1):
        with _calling(watch):
            state, record = steps.advance(*inputs, state, segment, runs.policy)
        records.append(_first_rounds(jax.tree.map(np.asarray, record), segment, batched))
        if jax.config.jax_debug_nans:  # type: ignore[attr-defined]
            _check_finite(state)
        watch.played(number, len(runs.segments) - number, state, records)
    with _calling(watch):
        result = steps.finish(runs.config, state)
    return result, jax.tree.map(lambda *parts: np.concatenate(parts, int(batched)), *records)


@contextlib.contextmanager
def _calling(watch: Watch) -> Iterator[None]:
    """Disable JAX's NaN check during a step, because NaN marks missing values."""
    with watch.calling(), jax.debug_nans(False):
        yield


def _first_rounds(record: Record, segment: Segment, batched: bool) -> Record:
    """Remove the padding rows after the segment's last simulated round."""
    to_play = int(segment.to_play)
    return jax.tree.map(lambda x: x[:, :to_play] if batched else x[:to_play], record)


def _check_finite(state: State) -> None:
    rounds = np.ravel(state.health.first_nonfinite)
    if rounds.any():
        raise FloatingPointError(
            f"round {rounds[rounds > 0].min()}: the model is not finite (jax_debug_nans is on). "
            "Disable jax_debug_nans to finish the run and record this round in the result as "
            "first_nonfinite_round."
        )


def is_traced(*inputs: Any) -> bool:
    """Return whether a computation on these inputs is being traced."""
    leaves = jax.tree.leaves((jnp.zeros(()), inputs))
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def single_run(
    config: SimConfig,
    data: Any,
    key: Array,
    quantities: Quantities,
    execution: Execution | None = None,
) -> Result:
    """Execute a prepared run with compiled steps, or within the user's trace if JAX is tracing."""
    if is_traced(config, data, key):
        return _traced_once(config, data, key, quantities, execution)
    spec = program_spec(config, data, quantities)
    runs = Runs(
        steps=compiled_steps(spec, quantities, execution or Execution(), None),
        config=spec.config_of(config),
        data=data,
        key=key,
        policy=np.int32(0),
        segments=[
            spec.segment(config, first, min(spec.room, config.num_rounds + 1 - first))
            for first in range(1, config.num_rounds + 1, spec.room)
        ],
        batched=False,
    )
    result, record = drive(runs, Watch())
    result = result.replace(eval_rounds=np.asarray(result.eval_rounds))
    return jax.device_put(with_rounds(result, config, record, quantities))


def traced_run(
    config: SimConfig,
    data: Any,
    key: Array,
    quantities: Quantities,
    execution: Execution | None = None,
) -> Result:
    """Simulate all rounds of a run in a single traceable call."""
    steps = plain_steps(quantities, execution, any_length=False)
    rounds = jnp.arange(1, config.num_rounds + 1, dtype=jnp.int32)
    segment = Segment(rounds, np.int32(config.num_rounds), length_of(config))
    state, _ = steps.init(config, data, key, 0)
    state, record = steps.advance(config, data, state, segment, 0)
    return with_rounds(steps.finish(config, state), config, record, quantities)


# If user code calls this repeatedly within one JAX trace, the run is traced only once.
_traced_once = jax.jit(traced_run, static_argnames=("quantities", "execution"))
