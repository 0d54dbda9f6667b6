"""The bandit: a choice of clients, what they return, and what the server learns from it."""

from pause_jax.bandit import reward as reward
from pause_jax.bandit import search as search
from pause_jax.bandit.stats import (
    ClientStats,
    Info,
    Observation,
    Selection,
    empty_stats,
    no_info,
    ucb_index,
    update_stats,
)
from pause_jax.bandit.stats import (
    store_active as store_active,
)

__all__ = [
    "ClientStats",
    "Info",
    "Observation",
    "Selection",
    "empty_stats",
    "no_info",
    "ucb_index",
    "update_stats",
]
