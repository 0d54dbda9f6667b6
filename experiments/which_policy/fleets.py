"""The fleets and the policies that are compared."""

from __future__ import annotations

import functools

import numpy as np

from pause_jax import Learning, SimConfig
from pause_jax.latency import Network, Pareto, Switching, TwoGroups
from pause_jax.learning import Dataset, Digits, Dirichlet, Mlp, Natural
from pause_jax.privacy import L1Laplace, NoPrivacy, PerCoordinateLaplace, Uniform
from pause_jax.world.availability import Diurnal

# What a server can run; ``fastest`` knows the speeds beforehand and stands for the limit of haste.
POLICIES = (
    "random",
    "all",
    "fastest",
    "power_of_choice",
    "oort",
    "clustered_size",
    "fedcs",
    "cs_ucb",
    "rbcs_f",
    "pause",
    "pause_thompson",
    "pause_discounted",
    "sa_pause",
)
# Of those that are compared with, by whom each is judged.
YARDSTICK = "random"
LEARNING = Learning(data=Digits(), model=Mlp(hidden=(32,)))
BASE = SimConfig(
    num_clients=30, num_selected=5, num_rounds=400, eval_every=2, track_regret=False,
    privacy=NoPrivacy(), learning=LEARNING, latency=TwoGroups(),
)  # fmt: skip


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


def fleets() -> dict[str, tuple[SimConfig, Dataset | None]]:
    """Each fleet by what is particular to it, with its data if they are not the config's."""
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
}
