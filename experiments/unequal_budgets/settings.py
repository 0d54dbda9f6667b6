"""Three tiers of budgets on Fashion-MNIST, and the compared policies."""

from __future__ import annotations

import numpy as np

from pause_jax import Learning, SimConfig
from pause_jax.bandit.reward import Reward
from pause_jax.learning import Dataset, FashionMnist, Mlp, Natural
from pause_jax.policies import NAMED, Pause, PolicyConfig
from pause_jax.privacy import NoPrivacy, PerClient, PerCoordinateLaplace, Uniform

CLIENTS, SAMPLES, ROUNDS = 60, 6000, 150
# eps_bar per coordinate, and the share of clients with this budget.
TIERS = {"strict": (2.0, 0.4), "middle": (20.0, 0.4), "liberal": (200.0, 0.2)}
MEANING = {
    "mixed": "each client has all labels, whatever its budget",
    "apart": "the labels 6 to 9 are with strict clients alone, and those have no others",
}
POLICIES: dict[str, PolicyConfig] = {
    "random": NAMED["random"],
    "fastest": NAMED["fastest"],
    "pause": NAMED["pause"],
    "pause, largest": Pause(left_of="largest"),
    "noise_sampling": NAMED["noise_sampling"],
    "noise_sampling_unbiased": NAMED["noise_sampling_unbiased"],
    "budget_groups": NAMED["budget_groups"],
    "tolerant_first": NAMED["tolerant_first"],
}


def budgets() -> np.ndarray:
    """Return eps_bar of each client [K], independent of the clients' speeds."""
    values = [np.full(round(share * CLIENTS), eps) for eps, share in TIERS.values()]
    return np.random.default_rng(1).permutation(np.concatenate(values))


def data_of(setting: str, data_dir: str | None) -> Dataset:
    """Load Fashion-MNIST with the client of each sample, equally many samples per client."""
    whole = FashionMnist(data_dir=data_dir).load()
    labels = np.asarray(whole.y_train)
    some = np.random.default_rng(0).permutation(labels.size)[:SAMPLES]
    # Sort by descending label, or not at all. Each client gets one block, strict clients first.
    order = some[np.argsort(-labels[some], kind="stable")] if setting == "apart" else some
    return Dataset.of(
        np.asarray(whole.x_train)[order],
        labels[order],
        np.asarray(whole.x_test),
        np.asarray(whole.y_test),
        clients=np.argsort(budgets(), kind="stable")[np.arange(SAMPLES) * CLIENTS // SAMPLES],
        pixel_max=int(whole.pixel_max) or None,
    )


def config_of(policy: PolicyConfig, rounds: int = ROUNDS, private: bool = True) -> SimConfig:
    """Return the config of a policy's run on the data of :func:`data_of`."""
    law = PerClient(values=tuple(float(each) for each in budgets()))
    budget = Uniform(total_epsilon=1.0, horizon=50.0, law=law)
    return SimConfig(
        num_clients=CLIENTS,
        num_selected=6,
        num_rounds=rounds,
        eval_every=5,
        track_regret=False,
        policy=policy,
        reward=Reward(alpha=100.0, gamma=5.0),
        privacy=PerCoordinateLaplace(sensitivity=0.003, budget=budget) if private else NoPrivacy(),
        learning=Learning(data=FashionMnist(), model=Mlp(hidden=(32,)), partition=Natural()),
    )
