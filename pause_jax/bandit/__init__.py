"""Bandit formulation of client selection: messages, statistics, rewards and searches."""

from pause_jax.bandit import reward as reward
from pause_jax.bandit import search as search
from pause_jax.bandit.protocol import Info, Observation, Selection, no_info, store_active
from pause_jax.bandit.stats import ClientStats, empty_stats, ucb_index, update_stats

__all__ = [
    "ClientStats",
    "Info",
    "Observation",
    "Selection",
    "empty_stats",
    "no_info",
    "store_active",
    "ucb_index",
    "update_stats",
]
