"""Where a run ends, and after which of its rounds the model is evaluated."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from pause_jax.config import SimConfig
from pause_jax.rng.summation import add

# Seconds at which a clock stops. Sums and squares over seeds stay finite in float32.
LONGEST = 1e18


class Length(NamedTuple):
    """How long a run is: of its config, or numbers of a program that plays runs of any length.

    Attributes:
      num_rounds: T.
      eval_every: rounds from one evaluation to the next.
    """

    num_rounds: Array | int
    eval_every: Array | int


def length_of(config: SimConfig) -> Length:
    """The length that a config asks for."""
    return Length(config.num_rounds, config.eval_every)


def is_evaluated(length: Length, round: Any) -> Any:
    """Whether the plan evaluates the model after a round: every so many, and after the last.

    A round at which the clock ends the run is evaluated too, see ``Round.metrics``.
    """
    return (round % length.eval_every == 0) | (round == length.num_rounds)


def advanced(clock: Array, rest: Array, seconds: Array) -> tuple[Array, Array]:
    """The clock and what its rounding left out, so many seconds later; at most ``LONGEST``."""
    clock, rest = add(clock, rest, jnp.minimum(seconds, LONGEST))
    return jnp.minimum(clock, LONGEST), jnp.where(clock < LONGEST, rest, 0.0)


def has_ended(config: SimConfig, clock: Array) -> Array:
    """Whether no round starts any more at this time, a scalar."""
    if config.max_seconds is None:
        return jnp.asarray(False)
    return clock >= config.max_seconds
