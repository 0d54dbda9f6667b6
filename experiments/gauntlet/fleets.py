"""Fleets and policies of the gauntlet."""

from __future__ import annotations

import functools

import numpy as np

from pause_jax import Learning, SimConfig
from pause_jax.learning import Dataset, Digits, Dirichlet, Mlp, Natural
from pause_jax.policies import NAMED, PolicyConfig, RoundRobin
from pause_jax.privacy import (
    Constant,
    L1Laplace,
    LogNormalBudgets,
    NoPrivacy,
    PerClient,
    PerCoordinateLaplace,
    Schedule,
    Tiers,
    Uniform,
)
from pause_jax.world.availability import Diurnal
from pause_jax.world.latency import Network, Pareto, Switching, TwoGroups

# Policy that all others are compared with.
YARDSTICK = "random"
# Excluded policies, with the reason.
LEFT_OUT = {"pause_exhaustive": "makes the choices of pause, but scores 142,506 cohorts per round"}
# Test samples that the server holds on every fleet, for policies that value updates.
HELD = 60
LEARNING = Learning(data=Digits(), model=Mlp(hidden=(32,)))
BASE = SimConfig(
    num_clients=30, num_selected=5, num_rounds=400, eval_every=2, track_regret=False,
    privacy=NoPrivacy(), learning=LEARNING, latency=TwoGroups(),
)  # fmt: skip
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


@functools.cache
def sorted_digits() -> Dataset:
    """Return digits sorted by label, 1/30 per client; the slow half has the labels 5 to 9."""
    data = Digits().load()
    order = np.argsort(np.asarray(data.y_train), kind="stable")
    return Dataset.of(
        np.asarray(data.x_train)[order],
        np.asarray(data.y_train)[order],
        np.asarray(data.x_test),
        np.asarray(data.y_test),
        clients=np.arange(len(order)) * BASE.num_clients // len(order),
        pixel_max=int(data.pixel_max) or None,
    )


def equal_budgets() -> dict[str, tuple[SimConfig, Dataset | None]]:
    """Return nine fleets, in each of which all clients have the same budget."""
    skewed = LEARNING.replace(partition=Dirichlet())
    few = Uniform(total_epsilon=200.0, horizon=12.0)
    whole = L1Laplace(clip_norm=1.0, budget=Uniform(total_epsilon=20_000.0, horizon=100.0))
    phones = BASE.replace(
        latency=Network(), availability_trace=Diurnal(recheck=30.0), dropout=0.1, num_clients=60,
        learning=skewed,
    )  # fmt: skip
    return {
        "alike": (BASE, None),
        "sizes": (BASE.replace(learning=skewed), None),
        "labels": (BASE.replace(learning=LEARNING.replace(partition=Natural())), sorted_digits()),
        "spent": (BASE.replace(privacy=PerCoordinateLaplace(sensitivity=0.003, budget=few)), None),
        "noise": (BASE.replace(privacy=whole), None),
        "tails": (BASE.replace(latency=Pareto()), None),
        "drift": (BASE.replace(latency=Switching(period=50)), None),
        "phones": (phones, None),
        "large": (BASE.replace(num_clients=300, num_selected=15), None),
    }


def fleets() -> dict[str, tuple[SimConfig, Dataset | None]]:
    """Return all fleets, three with unequal budgets, and data that the config does not load."""
    # With a total of 1, the law gives the budgets. Each release costs 200 / 12, as in `spent`.
    own = Constant(total_epsilon=1.0, per_release=200.0 / 12)
    tiers = Tiers(values=(50.0, 200.0, 800.0), shares=(0.4, 0.4, 0.2))
    fading = Uniform(total_epsilon=200.0, horizon=24.0, law=LogNormalBudgets(sigma=1.0))
    # The last third of the clients has the labels 7 to 9, and less budget than the others. The
    # model learns labels of few clients only with larger steps and less noise.
    mild = Constant(total_epsilon=1.0, per_release=100.0)
    shy = mild.replace(law=PerClient(values=(2000.0,) * 20 + (600.0,) * 10))
    every = {
        **equal_budgets(),
        "tiers": (private(own.replace(law=tiers)), None),
        "unequal": (private(fading), None),
        "shy": (private(shy, 0.02).override({"learning.partition": Natural()}), sorted_digits()),
    }
    return {
        name: (config.override({"learning.validation": HELD}), data)
        for name, (config, data) in every.items()
    }


def private(budget: Schedule, sensitivity: float = 0.003) -> SimConfig:
    """Return the basic fleet with the papers' noise and these budgets."""
    return BASE.replace(privacy=PerCoordinateLaplace(sensitivity=sensitivity, budget=budget))
