"""Where a run ends, and after which of its rounds the model is evaluated."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.config import SimConfig
from pause_jax.rng.summation import add

# Seconds at which a clock stops. Sums and squares over seeds stay finite in float32.
LONGEST = 1e18


class Length(NamedTuple):
    """Length of a run: that of its config, or arguments of a program that plays any length."""

    num_rounds: Array | int
    eval_every: Array | int


def length_of(config: SimConfig) -> Length:
    """Return the length that a config asks for."""
    return Length(config.num_rounds, config.eval_every)


def is_evaluated(length: Length, round: Any) -> Any:
    """Return whether the plan evaluates the model after a round.

    A round at which the clock ends the run is evaluated too, see ``Round.metrics``.
    """
    return (round % length.eval_every == 0) | (round == length.num_rounds)


def evaluated_rounds(config: SimConfig) -> np.ndarray:
    """Return the rounds after which the model is evaluated if the clock does not end the run."""
    rounds = np.arange(1, config.num_rounds + 1)
    return rounds[is_evaluated(length_of(config), rounds)]


def evaluated_at(config: SimConfig, played: Any) -> Any:
    """Return the rounds after which the model was evaluated, int32 [E].

    A run that the clock ended was evaluated then: in the place of the first round of
    :func:`evaluated_rounds` that it did not pass. The places after it hold -1.
    """
    planned = evaluated_rounds(config).astype(np.int32)
    reached = (np.append(0, planned[:-1]) < played).astype(np.int32)
    # In terms that NumPy has too: on the host no program is needed for each length.
    ended = planned + (played < planned).astype(np.int32) * (played - planned)
    return reached * (ended + 1) - 1


def advanced(clock: Array, rest: Array, seconds: Array) -> tuple[Array, Array]:
    """Add seconds to the clock and to what its rounding left out; at most ``LONGEST``."""
    clock, rest = add(clock, rest, jnp.minimum(seconds, LONGEST))
    return jnp.minimum(clock, LONGEST), jnp.where(clock < LONGEST, rest, 0.0)


def has_ended(config: SimConfig, clock: Array) -> Array:
    """Return whether no round starts at this time any more, a scalar."""
    if config.max_seconds is None:
        return jnp.asarray(False)
    return clock >= config.max_seconds
