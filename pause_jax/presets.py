"""The authors' settings, and a small one that needs no download.

Each preset takes ``policy`` by name or as a config and returns a :class:`SimConfig`; change a field
with ``config.replace(...)`` or ``config.override({"reward.gamma": 0.0})``. Sources: SPEC sections 6
and 7 (PAUSE section V and the authors' program; BSFL Table 3).
"""

from __future__ import annotations

from collections.abc import Callable

from pause_jax.config import Learning, SimConfig
from pause_jax.latency import SpeedNormal, TenGroups, TwoGroups
from pause_jax.learning import (
    Cifar10,
    Cnn3,
    Digits,
    Dirichlet,
    FashionMnist,
    Iid,
    Linear,
    LinearRegression,
    Mlp,
    Mnist,
)
from pause_jax.policies import PolicyConfig, named
from pause_jax.privacy import Geometric, NoPrivacy, PerCoordinateLaplace
from pause_jax.reward import Reward


def digits_small(policy: str | PolicyConfig = "pause") -> SimConfig:
    """The demo: digits, K = 30, m = 5, in the spirit of the authors' small MNIST run."""
    return SimConfig(
        num_clients=30,
        num_selected=5,
        num_rounds=300,
        eval_every=5,
        policy=named(policy),
        privacy=PerCoordinateLaplace(
            sensitivity=0.01, budget=Geometric(total_epsilon=200.0, decay=0.04)
        ),
        learning=Learning(data=Digits(), model=Mlp(hidden=(32, 16)), keep_optimizer_state=True),
    )


def mnist_small(policy: str | PolicyConfig = "pause", data_dir: str | None = None) -> SimConfig:
    """The authors' recorded MNIST runs: 2,000 samples, mlp, K = 30, m = 5, eps_bar = 200."""
    return SimConfig(
        num_clients=30,
        num_selected=5,
        num_rounds=300,
        eval_every=10,
        policy=named(policy),
        reward=Reward(alpha=100.0, beta=2.0, gamma=5.0),
        privacy=PerCoordinateLaplace(
            sensitivity=0.003, budget=Geometric(total_epsilon=200.0, decay=0.04)
        ),
        learning=Learning(
            data=Mnist(num_train=2000, data_dir=data_dir),
            model=Mlp(hidden=(32, 16)),
            keep_optimizer_state=True,
        ),
    )
