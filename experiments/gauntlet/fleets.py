"""Fleets and policies of the gauntlet, with clients numbered by speed as in the papers."""

from __future__ import annotations

from pause_jax import SimConfig
from pause_jax.analysis.gauntlet import fleets as benchmark
from pause_jax.learning import Dataset
from pause_jax.policies import NAMED, PolicyConfig, RoundRobin

# Policy that all others are compared with.
YARDSTICK = benchmark.YARDSTICK
# Excluded policies, with the reason.
LEFT_OUT = {
    "pause_exhaustive": "makes the choices of pause, but scores 142,506 cohorts per round",
    "tifl": "is newer than this experiment (the benchmark includes it)",
}
MEANING = {
    "alike": "a fast and a slow half, equal data",
    "sizes": "the same, with data shares from a Dirichlet distribution",
    "labels": "the same with equal data; only the slow half has labels 5 to 9",
    "spent": "the same with equal data; each budget allows 12 participations",
    "noise": "the same, with noise for whole updates (l1_vector), 100 participations",
    "tails": "log-spaced speeds with heavy tails (pareto)",
    "drift": "clients swap speeds (switching)",
    "phones": "60 phones with daily hours (network, diurnal); each round loses a tenth",
    "large": "15 of 300 clients, a fast and a slow half",
    "tiers": "budgets of 3, 12 and 48 releases for 40, 40 and 20 % of the clients",
    "unequal": "24 releases each, with different noise (log-normal budgets, sigma 1)",
    "shy": "the third with labels 7 to 9 has budget for 6 releases, the others for 20",
}


def policies() -> dict[str, PolicyConfig]:
    """Return the library's named policies, except for ``LEFT_OUT``, and a control.

    Clients are numbered by speed on most of these fleets, so each cohort of ``round_robin`` has
    clients of similar speed. The control goes through the clients in a shuffled order instead.
    """
    chosen = {name: policy for name, policy in NAMED.items() if name not in LEFT_OUT}
    return {**chosen, "round_robin_shuffled": RoundRobin(order="shuffled")}


def fleets() -> dict[str, tuple[SimConfig, Dataset | None]]:
    """Return fleets of the benchmark without shuffled numbers, and data that are not loaded."""
    changed = {"num_rounds": 400, "shuffle_clients": False, "learning.holdout": 0.0}
    found = benchmark.fleets()
    return {name: (found[name].config.override(changed), found[name].data) for name in MEANING}
