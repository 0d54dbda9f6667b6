"""Configs of the experiment, and the best clip of each mechanism."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import numpy as np
import xarray as xr

from pause_jax import SimConfig, presets, sweep
from pause_jax.privacy import (
    DuchiL2,
    GaussianMechanism,
    Geometric,
    L1Laplace,
    Mechanism,
    NoPrivacy,
    PerCoordinateLaplace,
    PrivUnitG,
    Projected,
    Schedule,
)

SAMPLES = 67  # per client on MNIST, as in the authors' runs with 2,000 samples and K = 30
NETWORKS = {"30/5": (30, 5), "300/15": (300, 15)}
# Total eps_bar of a client. Networks learn little with Laplace noise on whole updates below 10^5.
EPSILONS = (20.0, 200.0, 2e3, 2e4)
LAPLACE_EPSILONS = (*EPSILONS, 2e5, 2e6)
# Each mechanism uses the best of three clips, selected by accuracy.
L2_CLIPS, L1_CLIPS, WIDTHS = (1e-3, 1e-2, 1e-1), (0.01, 0.3, 10.0), (3e-4, 3e-3, 3e-2)


# (mechanism, epsilon) -> mean and sd of accuracy over seeds, and the best clip.
Found = dict[tuple[str, float], tuple[float, float, float]]


class Point(NamedTuple):
    """Position of a run in the tables: mechanism, eps_bar in the mechanism's unit, and clip."""

    mechanism: str
    epsilon: float
    clip: float


def setting(dataset: str, network: str, data_dir: str | None, rounds: int) -> SimConfig:
    """Return the config of PAUSE with the authors' weights and network (32, 16), i.i.d. data."""
    num_clients, num_selected = NETWORKS[network]
    if dataset == "mnist":
        config = presets.mnist_small(data_dir=data_dir)
        config = config.override({"learning.data.num_train": SAMPLES * num_clients})
    else:
        config = presets.digits_small()
    return config.replace(
        num_clients=num_clients,
        num_selected=num_selected,
        num_rounds=rounds,
        eval_every=rounds,
        track_regret=False,
    )


def mechanisms(num_parameters: int) -> dict[Point, Mechanism]:
    """Return all mechanisms; per_coordinate also at the others' whole-update epsilons."""

    def budget(epsilon: float) -> Schedule:
        return Geometric(total_epsilon=epsilon)

    points: dict[Point, Mechanism] = {}
    coordinate = (*(e / num_parameters for e in EPSILONS), *EPSILONS)
    for e, width in itertools.product(coordinate, WIDTHS):
        mechanism = PerCoordinateLaplace(budget=budget(e), sensitivity=width)
        points[Point("per_coordinate", e, width)] = mechanism
    for e, clip in itertools.product(LAPLACE_EPSILONS, L1_CLIPS):
        points[Point("l1_vector", e, clip)] = L1Laplace(budget=budget(e), clip_norm=clip)
    for e, clip in itertools.product(EPSILONS, L2_CLIPS):
        for cls in (GaussianMechanism, PrivUnitG, DuchiL2):
            points[Point(cls.name, e, clip)] = cls(budget=budget(e), clip_norm=clip)
        inner = PrivUnitG(budget=budget(e), clip_norm=clip)
        points[Point("projected", e, clip)] = Projected(inner=inner)
    return points


def best(accuracy: dict[Point, np.ndarray]) -> Found:
    """Return mean and sd over seeds at the clip with the best mean, by (mechanism, epsilon)."""
    found: Found = {}
    for point, values in accuracy.items():
        mean, sd = float(values.mean()), float(values.std(ddof=min(1, values.size - 1)))
        name = (point.mechanism, point.epsilon)
        if name not in found or mean > found[name][0]:
            found[name] = mean, sd, point.clip
    return found


def play(config: SimConfig, seeds: int) -> tuple[int, dict[Point, np.ndarray]]:
    """Return d, and the final accuracy [seeds] of each point in %; 0 if not finite."""
    keys = jax.random.split(jax.random.key(0), seeds)
    plain = sweep({"none": config.replace(privacy=NoPrivacy())}, keys)
    num_parameters = int(plain.num_parameters.item())
    accuracy = {Point("none", np.inf, 0.0): _end(plain)[0]}
    points = mechanisms(num_parameters)
    rows = _end(sweep([config.replace(privacy=m) for m in points.values()], keys))
    return num_parameters, accuracy | dict(zip(points, rows, strict=True))


def _end(result: xr.Dataset) -> np.ndarray:
    return np.nan_to_num(100 * result.test_accuracy.isel(eval_round=-1).values)
