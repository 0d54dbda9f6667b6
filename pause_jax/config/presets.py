"""Presets for the experiments of the PAUSE and BSFL papers, a small demo and a fleet of phones.

Each preset accepts a policy name or policy config, and returns a :class:`SimConfig`. Change a field
with ``config.replace(...)`` or ``config.override({"reward.gamma": 0.0})``. Sources: PAUSE section V
and the authors' code; BSFL Table 3, Figs. 5-6, 8-9 and 11-12 (``docs/reproduction.md``).
``digits_small`` and ``phones`` need no download.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pause_jax.bandit.reward import Reward
from pause_jax.bandit.search import Annealing
from pause_jax.config.sim_config import SimConfig
from pause_jax.learning import (
    Cifar10,
    Cnn3,
    DataConfig,
    Digits,
    Dirichlet,
    FashionMnist,
    Learning,
    Linear,
    LinearRegression,
    Mlp,
    Mnist,
    Model,
    ResNet18,
    StepDecay,
)
from pause_jax.policies import Pause, PolicyConfig, Ucb, named
from pause_jax.privacy import Geometric, NoPrivacy, PerCoordinateLaplace
from pause_jax.world.availability import Phones
from pause_jax.world.latency import Network, SpeedNormal, TenGroups

# Policy name or policy config.
AnyPolicy = str | PolicyConfig


def digits_small(policy: AnyPolicy = "pause", data_dir: str | None = None) -> SimConfig:
    """Configure a Digits demo (K = 30, m = 5) modelled on the PAUSE authors' small MNIST runs."""
    return _small(policy, Digits(), Mlp(hidden=(32, 16)), 0.003, 200.0).replace(eval_every=5)


def phones(policy: AnyPolicy = "pause", data_dir: str | None = None) -> SimConfig:
    """Configure Digits on 200 phones, with latency and availability fitted to measurements.

    ``Network(path="phones")`` combines measured ResNet training times with network rates from
    FLASH. Transfers are sized for ResNet-18 (11.7 million float32 weights), not for the small
    model being trained, so a round takes minutes, as in a real fleet. About one phone in ten is
    available at any time (idle, charging and on Wi-Fi). For details, see ``tools/devices.py`` and
    :class:`pause_jax.world.availability.Phones`.
    """
    size = 46.8e6
    return digits_small(policy).replace(
        num_clients=200,
        latency=Network(path="phones", download_bytes=size, upload_bytes=size, min_latency=30.0),
        availability_trace=Phones(),
    )


def mnist_small(policy: AnyPolicy = "pause", data_dir: str | None = None) -> SimConfig:
    """Configure i.i.d. MNIST with 2,000 samples, K = 30, m = 5, eps_bar = 200 (authors' runs)."""
    data = Mnist(num_train=2000, data_dir=data_dir)
    return _small(policy, data, Mlp(hidden=(32, 16)), 0.003, 200.0)


def mnist_large(policy: AnyPolicy = "sa_pause", data_dir: str | None = None) -> SimConfig:
    """Configure MNIST, Dirichlet(2), K = 300, m = 15, eps_bar = 20, zeta = 3 (PAUSE Figs. 6-7)."""
    small = _small("pause", Mnist(data_dir=data_dir), Mlp(hidden=(32, 16)), 0.003, 20.0)
    sizes = Dirichlet(concentration=2.0, dominant_share=0.0)
    return _large(small.override({"learning.partition": sizes}), policy)


def cifar10_small(policy: AnyPolicy = "pause", data_dir: str | None = None) -> SimConfig:
    """Configure i.i.d. CIFAR-10 with cnn3, K = 30, m = 5, eps_bar = 100 (authors' ICASSP run)."""
    return _small(policy, Cifar10(data_dir=data_dir), Cnn3(), 0.012, 100.0)


def cifar10_small_noniid(policy: AnyPolicy = "pause", data_dir: str | None = None) -> SimConfig:
    """Configure ``cifar10_small`` with Dirichlet(3) sizes and dominant labels (PAUSE Figs. 4-5)."""
    partition = Dirichlet(concentration=3.0, dominant_share=0.25)
    return cifar10_small(policy, data_dir).override({"learning.partition": partition})


def cifar10_large(policy: AnyPolicy = "sa_pause", data_dir: str | None = None) -> SimConfig:
    """Configure non-i.i.d. CIFAR-10, K = 300, m = 15, eps_bar = 10, zeta = 3 (PAUSE Figs. 8-9)."""
    small = cifar10_small_noniid("pause", data_dir)
    return _large(small.override({"privacy.budget.total_epsilon": 10.0}), policy)


def bsfl_linear(policy: AnyPolicy = "bsfl", data_dir: str | None = None) -> SimConfig:
    """Configure i.i.d. linear regression, K = 20, m = 5, alpha = 3, beta = 1.2 (BSFL Table 3)."""
    return _bsfl(
        policy,
        num_clients=20,
        num_selected=5,
        num_rounds=500,
        eval_every=10,
        reward=Reward(alpha=3.0, beta=1.2, gamma=0.0),
        latency=SpeedNormal(),
        learning=Learning(
            data=LinearRegression(), model=Linear(), optimizer="sgd", learning_rate=5e-3
        ),
    )


def bsfl_linear_noniid(policy: AnyPolicy = "bsfl", data_dir: str | None = None) -> SimConfig:
    """Configure ``bsfl_linear`` with Dirichlet sizes, quality >= 0.5 and learning rate 0.003."""
    return _noniid(bsfl_linear(policy)).override({"learning.learning_rate": 3e-3})


def bsfl_fashion(policy: AnyPolicy = "bsfl", data_dir: str | None = None) -> SimConfig:
    """Configure i.i.d. Fashion-MNIST with cnn3, K = 500, m = 25, alpha = 2, beta = 1 (BSFL Fig. 8).

    The BSFL image presets use the number of clients, learning rates, alpha and beta from Table 3.
    The number of rounds is the table's "Training Time" (400 or 200, without a unit). The paper
    mentions a "CNN" and StepLR, but specifies no network except ResNet-18. The paper also omits the
    decay steps, optimizer, batch sizes and latencies. We chose cnn3, Adam, ten latency groups, and
    a learning rate that is halved after each quarter of the rounds.
    """
    return _bsfl_images(policy, FashionMnist(data_dir=data_dir), Cnn3(), 5e-5, num_rounds=400)


def bsfl_fashion_noniid(policy: AnyPolicy = "bsfl", data_dir: str | None = None) -> SimConfig:
    """Configure non-i.i.d. Fashion-MNIST, alpha = 3, beta = 1.2 (Fig. 11; see bsfl_fashion)."""
    data = FashionMnist(data_dir=data_dir)
    return _noniid(_bsfl_images(policy, data, Cnn3(), 1e-5, num_rounds=200))


def bsfl_cifar10(policy: AnyPolicy = "bsfl", data_dir: str | None = None) -> SimConfig:
    """Configure i.i.d. CIFAR-10, ResNet-18 (batch norm), K = 500, m = 25 (BSFL Fig. 9, Tables 1-2).

    See bsfl_fashion for details. A round and an evaluation each take about 100 s of CPU time.
    Reduce ``learning.model.width`` for faster runs.
    """
    data, model = Cifar10(data_dir=data_dir), ResNet18(norm="batch")
    return _bsfl_images(policy, data, model, 9e-5, num_rounds=400)


def bsfl_cifar10_noniid(policy: AnyPolicy = "bsfl", data_dir: str | None = None) -> SimConfig:
    """Configure non-i.i.d. CIFAR-10, cnn3, alpha = 3, beta = 1.2 (Fig. 12; see bsfl_fashion)."""
    data = Cifar10(data_dir=data_dir)
    return _noniid(_bsfl_images(policy, data, Cnn3(), 5e-6, num_rounds=200))


def bsfl_groups(policy: AnyPolicy = "bsfl", data_dir: str | None = None) -> SimConfig:
    """Configure ten latency groups without learning, K = 500, m = 25 (BSFL Figs. 5-6)."""
    return _bsfl(policy, num_rounds=10_000, learning=None)


def _small(
    policy: AnyPolicy, data: DataConfig, model: Model, sensitivity: float, total_epsilon: float
) -> SimConfig:
    """Build a config for the PAUSE authors' small network (K = 30, m = 5, 300 rounds)."""
    budget = Geometric(total_epsilon=total_epsilon, decay=0.04)
    return SimConfig(
        num_clients=30,
        num_selected=5,
        num_rounds=300,
        eval_every=10,
        policy=named(policy),
        privacy=PerCoordinateLaplace(sensitivity=sensitivity, budget=budget),
        learning=Learning(data=data, model=model, keep_optimizer_state=True),
    )


def _large(small: SimConfig, policy: AnyPolicy) -> SimConfig:
    """Scale a config up to the PAUSE authors' large network (K = 300, m = 15, 500 rounds).

    PAUSE policies passed by name use zeta = 3 and, with annealing, 3,000 steps and ``cooling=30``.
    """
    chosen = named(policy)
    if isinstance(policy, str) and isinstance(chosen, Pause):
        chosen = chosen.replace(index=Ucb(speed_weight=3.0))
        if isinstance(chosen.search, Annealing):
            chosen = chosen.replace(search=chosen.search.replace(steps=3000, cooling=30.0))
    return small.replace(num_clients=300, num_selected=15, num_rounds=500, policy=chosen)


def _bsfl(policy: AnyPolicy, **fields: Any) -> SimConfig:
    """Build a BSFL config (default: K = 500, m = 25, ten latency groups, alpha = 2, beta = 1)."""
    common: dict[str, Any] = {
        "num_clients": 500,
        "num_selected": 25,
        "reward": Reward(alpha=2.0, beta=1.0, gamma=0.0),
        "latency": TenGroups(),
    }
    return SimConfig(policy=named(policy), privacy=NoPrivacy(), **{**common, **fields})


def _bsfl_images(
    policy: AnyPolicy, data: DataConfig, model: Model, learning_rate: float, num_rounds: int
) -> SimConfig:
    learning = Learning(
        data=data,
        model=model,
        learning_rate=learning_rate,
        schedule=StepDecay(every=num_rounds // 4, factor=0.5),
    )
    return _bsfl(policy, num_rounds=num_rounds, eval_every=10, learning=learning)


def _noniid(config: SimConfig) -> SimConfig:
    """Set Dirichlet sizes, dominant labels, data quality >= 0.5, alpha = 3 and beta = 1.2."""
    return config.override(
        {
            "reward": Reward(alpha=3.0, beta=1.2, gamma=0.0),
            "learning.partition": Dirichlet(concentration=2.0, min_quality=0.5),
        }
    )


PRESETS: dict[str, Callable[..., SimConfig]] = {
    preset.__name__: preset
    for preset in (
        digits_small,
        phones,
        mnist_small,
        mnist_large,
        cifar10_small,
        cifar10_small_noniid,
        cifar10_large,
        bsfl_linear,
        bsfl_linear_noniid,
        bsfl_fashion,
        bsfl_fashion_noniid,
        bsfl_cifar10,
        bsfl_cifar10_noniid,
        bsfl_groups,
    )
}

__all__ = ["PRESETS", *PRESETS]
