"""Length and end of a run, and the rounds after which the model is evaluated."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.config import SimConfig
from pause_jax.rng.summation import add

# Maximum clock time in seconds, which keeps sums of squares over seeds finite in float32.
LONGEST = 1e18


class Length(NamedTuple):
    """Length of a run, traced in programs that support runs of any length, otherwise static."""

    num_rounds: Array | int
    eval_every: Array | int


def length_of(config: SimConfig) -> Length:
    """Return the run length set in a config."""
    return Length(config.num_rounds, config.eval_every)


def is_evaluated(length: Length, round: Any) -> Any:
    """Return whether an evaluation is planned after a round.

    If ``max_seconds`` ends the run, the last round is also evaluated (see ``Round.metrics``).
    """
    return (round % length.eval_every == 0) | (round == length.num_rounds)


def evaluated_rounds(config: SimConfig) -> np.ndarray:
    """Return the rounds after which an evaluation is planned, int [E], ignoring ``max_seconds``."""
    rounds = np.arange(1, config.num_rounds + 1)
    return rounds[is_evaluated(length_of(config), rounds)]


def evaluated_at(config: SimConfig, played: Any) -> Any:
    """Return the rounds after which the model was evaluated, int32 [E].

    If ``max_seconds`` ended the run after ``played`` rounds, the last evaluation follows round
    ``played``. Later entries are -1.
    """
    planned = evaluated_rounds(config).astype(np.int32)
    reached = (np.append(0, planned[:-1]) < played).astype(np.int32)
    # Unlike jnp functions, operators keep NumPy arrays on the host and need no compilation.
    ended = planned + (played < planned).astype(np.int32) * (played - planned)
    return reached * (ended + 1) - 1


def advanced(clock: Array, rest: Array, seconds: Array) -> tuple[Array, Array]:
    """Advance a clock by ``seconds``, cap it at ``LONGEST``, and return (clock, rounding error)."""
    clock, rest = add(clock, rest, jnp.minimum(seconds, LONGEST))
    return jnp.minimum(clock, LONGEST), jnp.where(clock < LONGEST, rest, 0.0)


def has_ended(config: SimConfig, clock: Array) -> Array:
    """Return whether ``clock`` has reached ``max_seconds``."""
    return jnp.asarray(False) if config.max_seconds is None else clock >= config.max_seconds
