"""Parts, mechanisms and data of the experiment, and the weights that the server trains first."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from pause_jax import Learning, SimConfig, simulate
from pause_jax.learning import Dataset, FashionMnist, Lora, Mlp, Natural
from pause_jax.policies import NAMED
from pause_jax.privacy import GaussianMechanism, L1Laplace, Mechanism, NoPrivacy, PrivUnitG, Uniform

CLIENTS, SELECTED, ROUNDS, SAMPLES, PUBLIC, HIDDEN = 100, 10, 50, 6000, 6000, 32
MEANING = {
    "same": "the server's samples have all labels",
    "new": "the server's samples have the labels 0 to 4 only",
}
# The output kernel has 10 columns, so 10 is the largest rank for all kernels.
PARTS: dict[str, Any] = {
    "all": "all",
    "head": "head",
    **{f"LoRA {rank}": Lora(rank=rank) for rank in (1, 4, 10)},
}
# Run without noise only. It cannot change the output layer, which new labels need.
HIDDEN_ONLY = {"LoRA 16, hidden": Lora(rank=16, targets="hidden")}
MECHANISMS = (L1Laplace, GaussianMechanism, PrivUnitG)
# Total eps_bar of a client, for whole updates.
EPSILONS = (3.0, 20.0, 100.0, 500.0, 5e3, 1e5)
# L2 clips, and L1 clips divided by sqrt(d).
CLIPS = (0.003, 0.02, 0.1, 0.5)
L1_CLIPS = (0.0003, 0.003, 0.03, 0.3)


class Point(NamedTuple):
    """Position of runs in the tables, by default without noise."""

    part: str
    mechanism: str = "none"
    epsilon: float = math.inf


class Start(NamedTuple):
    """Weights that the server trained, their test accuracy in %, and the clients' data."""

    weights: Any
    accuracy: float
    data: Dataset


def data_of(setting: str, data_dir: str | None) -> tuple[Dataset, Dataset]:
    """Return the server's samples and the clients' samples, equally many per client."""
    whole = FashionMnist(data_dir=data_dir).load()
    x, y = np.asarray(whole.x_train), np.asarray(whole.y_train)
    x_test, y_test = np.asarray(whole.x_test), np.asarray(whole.y_test)
    order = np.random.default_rng(0).permutation(y.size)
    held, rest = order[:SAMPLES], order[SAMPLES:]
    public = (rest if setting == "same" else rest[y[rest] < 5])[:PUBLIC]

    def part(rows: np.ndarray, clients: int) -> Dataset:
        return Dataset.of(
            x[rows],
            y[rows],
            x_test,
            y_test,
            clients=np.arange(rows.size) * clients // rows.size,
            pixel_max=int(whole.pixel_max) or None,
            num_classes=10,
        )

    return part(public, 1), part(held, CLIENTS)


def config_of(rounds: int, privacy: Mechanism, num_clients: int, **learning: Any) -> SimConfig:
    """Return the config of a run in which a tenth of the clients (or one) takes turns."""
    return SimConfig(
        num_clients=num_clients,
        num_selected=min(SELECTED, num_clients),
        num_rounds=rounds,
        eval_every=rounds,
        track_regret=False,
        policy=NAMED["round_robin"],
        privacy=privacy,
        learning=Learning(
            data=FashionMnist(), model=Mlp(hidden=(HIDDEN,)), partition=Natural(), **learning
        ),
    )


def start_of(setting: str, data_dir: str | None) -> Start:
    """Train all weights on the server's samples: ten epochs, as the only client of a run."""
    public, held = data_of(setting, data_dir)
    config = config_of(10, NoPrivacy(), 1, learning_rate=0.001, max_steps=300)
    result = simulate(config, jax.random.key(0), public)
    return Start(result.variables, 100 * float(result.test_accuracy[-1]), held)


def tuning(part: str, start: Start, privacy: Mechanism, rounds: int) -> SimConfig:
    """Return the config of clients that train ``part``, from the server's weights."""
    trained = (PARTS | HIDDEN_ONLY)[part]
    words = {"trained": trained, "optimizer": "sgd", "learning_rate": 0.1}
    return config_of(rounds, privacy, CLIENTS, start=start.weights, **words)


def mechanisms(sizes: dict[str, int], rounds: int) -> dict[Point, list[Mechanism]]:
    """Return each point's mechanism with each clip, given the size d of each part.

    A client spends the same epsilon in each of its releases.
    """
    found: dict[Point, list[Mechanism]] = {}
    for part, cls, epsilon in itertools.product(PARTS, MECHANISMS, EPSILONS):
        budget = Uniform(total_epsilon=epsilon, horizon=rounds * SELECTED / CLIENTS)
        clips = [c * sizes[part] ** 0.5 for c in L1_CLIPS] if cls is L1Laplace else CLIPS
        point = Point(part, cls.name, epsilon)
        found[point] = [cls(budget=budget, clip_norm=clip) for clip in clips]
    return found
