"""The rounds after which a run was evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np

from pause_jax.config import SimConfig
from pause_jax.run.horizon import is_evaluated, length_of


def evaluated_rounds(config: SimConfig) -> np.ndarray:
    """The rounds after which the model is evaluated if the clock does not end the run, int [E]."""
    rounds = np.arange(1, config.num_rounds + 1)
    return rounds[is_evaluated(length_of(config), rounds)]


def evaluated_at(config: SimConfig, played: Any) -> Any:
    """The rounds after which the model was evaluated, int32 [E], of a run of so many rounds.

    A run that the clock ended was evaluated then: in the place of the first round of
    ``evaluated_rounds`` that it did not pass. -1 in the places after it.
    """
    planned = evaluated_rounds(config).astype(np.int32)
    reached = (np.append(0, planned[:-1]) < played).astype(np.int32)
    # In terms that NumPy has too: what it counts on the host needs no program for each length.
    ended = planned + (played < planned).astype(np.int32) * (played - planned)
    return reached * (ended + 1) - 1
