"""The fleets and the policies of the gauntlet."""

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

# With whom each is compared.
YARDSTICK = "random"
# Left out, and why.
LEFT_OUT = {"pause_exhaustive": "chooses as pause does, and scores 142,506 cohorts a round for it"}
# Samples of the test set that the server holds on every fleet, for policies that value updates.
HELD = 60
LEARNING = Learning(data=Digits(), model=Mlp(hidden=(32,)))
BASE = SimConfig(
    num_clients=30, num_selected=5, num_rounds=400, eval_every=2, track_regret=False,
    privacy=NoPrivacy(), learning=LEARNING, latency=TwoGroups(),
)  # fmt: skip
MEANING = {
    "alike": "a fast and a slow half, equal data",
    "sizes": "the same, shares of data drawn from a Dirichlet law",
    "labels": "the same, and only the slow half has the labels 5 to 9",
    "spent": "the same with equal data; after 12 participations a client's budget is spent",
    "noise": "the same, whole updates protected (l1_vector), 100 participations",
    "tails": "log-spaced speeds with heavy tails (pareto)",
    "drift": "speeds change hands (switching)",
    "phones": "60 phones by the hour (network, diurnal), a tenth is lost in each round",
    "large": "15 of 300 clients, a fast and a slow half",
    "tiers": "budgets of 3, 12 and 48 releases for 40, 40 and 20 % of the clients",
    "unequal": "24 releases each, whose noise differs: log-normal budgets, sigma 1",
    "shy": "the third that has the labels 7 to 9 has budget for 6 releases, the others for 20",
}


def policies() -> dict[str, PolicyConfig]:
    """The library's named policies, but those left out, and a control.

    Clients are numbered by speed on most of these fleets, so that the cohorts of ``round_robin``
    are of one speed. In a shuffled order they are not.
    """
    chosen = {name: policy for name, policy in NAMED.items() if name not in LEFT_OUT}
    return {**chosen, "round_robin_shuffled": RoundRobin(order="shuffled")}


@functools.cache
def sorted_digits() -> Dataset:
    """Digits in the order of their labels, a thirtieth to each client: the slow half has 5 to 9."""
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
    """Nine fleets by what is particular to each; within a fleet all clients have one budget."""
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
    """Nine fleets and three of unequal budgets, with their data if they are not the config's."""
    # Budgets as numbers: each release costs 200 / 12, as in the fleet `spent`.
    own = Constant(total_epsilon=1.0, per_release=200.0 / 12)
    tiers = Tiers(values=(50.0, 200.0, 800.0), shares=(0.4, 0.4, 0.2))
    fading = Uniform(total_epsilon=200.0, horizon=24.0, law=LogNormalBudgets(sigma=1.0))
    # The last third of the clients has the labels 7 to 9, and less budget than the others. Labels
    # that few clients have need larger steps and less noise to be learnt at all.
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
    """The basic fleet with the papers' noise; clients whose budget is spent are not chosen."""
    return BASE.replace(privacy=PerCoordinateLaplace(sensitivity=sensitivity, budget=budget))
