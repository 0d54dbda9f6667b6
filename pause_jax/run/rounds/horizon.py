"""End of a run, and the rounds after which its model is evaluated."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.config import SimConfig
from pause_jax.rng.summation import add

# Seconds at which a clock stops, to keep sums and squares over seeds finite in float32.
LONGEST = 1e18


class Length(NamedTuple):
    """Length of a run, from its config or as arguments of a program for any length."""

    num_rounds: Array | int
    eval_every: Array | int


def length_of(config: SimConfig) -> Length:
    """Return the length of a config's run."""
    return Length(config.num_rounds, config.eval_every)


def is_evaluated(length: Length, round: Any) -> Any:
    """Return whether an evaluation is planned after a round.

    The round in which the clock ends the run is evaluated too, see ``Round.metrics``.
    """
    return (round % length.eval_every == 0) | (round == length.num_rounds)


def evaluated_rounds(config: SimConfig) -> np.ndarray:
    """Return the rounds after which the model is evaluated if the clock does not end the run."""
    rounds = np.arange(1, config.num_rounds + 1)
    return rounds[is_evaluated(length_of(config), rounds)]


def evaluated_at(config: SimConfig, played: Any) -> Any:
    """Return the rounds after which the model was evaluated, int32 [E].

    If the clock ended the run after ``played`` rounds, this last round replaces the next planned
    round of :func:`evaluated_rounds`. Later entries are -1.
    """
    planned = evaluated_rounds(config).astype(np.int32)
    reached = (np.append(0, planned[:-1]) < played).astype(np.int32)
    # Works on NumPy arrays too, because jnp would compile for each length on the host.
    ended = planned + (played < planned).astype(np.int32) * (played - planned)
    return reached * (ended + 1) - 1


def advanced(clock: Array, rest: Array, seconds: Array) -> tuple[Array, Array]:
    """Advance the clock and its rounding error ``rest`` by ``seconds``, up to ``LONGEST``."""
    clock, rest = add(clock, rest, jnp.minimum(seconds, LONGEST))
    return jnp.minimum(clock, LONGEST), jnp.where(clock < LONGEST, rest, 0.0)


def has_ended(config: SimConfig, clock: Array) -> Array:
    """Return whether the run has ended at this time, a scalar."""
    if config.max_seconds is None:
        return jnp.asarray(False)
    return clock >= config.max_seconds
