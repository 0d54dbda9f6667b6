"""Benchmark fleets, version 1. Changing a fleet requires a new version and new scores."""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np

from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, config_file
from pause_jax.learning import Dataset, Digits, Dirichlet, FashionMnist, Learning, Mlp, Natural
from pause_jax.policies import Random
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
from pause_jax.world.availability import Diurnal, Phones
from pause_jax.world.latency import Network, Pareto, Switching, TwoGroups

VERSION = 1
# Data sets to train on.
TRACKS = ("digits", "fashion")
SEEDS = 16
# Number of fleets for the Bonferroni correction, even if a policy is run on only some of them.
FLEETS = 14
# Policy with which all other policies are compared.
YARDSTICK = "random"
# Target accuracy for the ``seconds_to_target`` metric.
TARGET = 0.6


class Fleet(NamedTuple):
    """Benchmark fleet.

    Attributes:
      config: base config. ``play`` sets its policy and time limit. Client numbers are shuffled.
      data: data set that replaces the config's, or None to load the config's data set.
      seconds: early and late times at which accuracy is scored, in simulated seconds.
    """

    config: SimConfig
    data: Dataset | None
    seconds: tuple[float, float]

    @property
    def digest(self) -> str:
        """Hash of the settings and data that determine the fleet's worlds and scores."""
        parts = (VERSION, SEEDS, TARGET, self.seconds, config_file.dumps(self.config))
        of_data = "" if self.data is None else self.data.digest
        return hashlib.sha256(f"{parts} {of_data}".encode()).hexdigest()[:16]


def fleets(track: str = "digits", data_dir: str | None = None) -> dict[str, Fleet]:
    """Return the benchmark's fleets by name.

    Args:
      track: one of ``TRACKS``. On ``fashion``, clients train on 1,500 Fashion-MNIST images, and
        accuracy is measured on 500 test images.
      data_dir: folder of prepared data sets, used only for ``fashion``.

    Raises:
      ConfigError: if the track is unknown, or the data set cannot be read.
    """
    if track not in TRACKS:
        raise ConfigError(f"track {shown(track)}: must be one of {', '.join(TRACKS)}.")
    data = Digits() if track == "digits" else FashionMnist()
    samples = None if track == "digits" else _fashion(data_dir)
    learning = Learning(data=data, model=Mlp(hidden=(32,)), validation=60, holdout=0.2)
    skewed = learning.replace(partition=Dirichlet())
    apart = learning.replace(partition=Natural())
    base = SimConfig(
        num_clients=30, num_selected=5, num_rounds=1000, eval_every=2, track_regret=False,
        shuffle_clients=True, policy=Random(), privacy=NoPrivacy(), learning=learning,
        latency=TwoGroups(),
    )  # fmt: skip
    phones = base.replace(latency=Network(path="phones"), num_clients=60, learning=skewed)
    charging = phones.replace(availability_trace=Phones(), num_clients=300)
    absent = phones.replace(
        latency=Network(), availability_trace=Diurnal(recheck=30.0), dropout=0.1
    )
    # With ``own``, a release costs as much as with ``few``, but ``law`` sets the total budgets.
    few = Uniform(total_epsilon=200.0, horizon=12.0)
    own = Constant(total_epsilon=1.0, per_release=200.0 / 12)
    tiers = own.replace(law=Tiers(values=(50.0, 200.0, 800.0), shares=(0.4, 0.4, 0.2)))
    fading = Uniform(total_epsilon=200.0, horizon=24.0, law=LogNormalBudgets(sigma=1.0))
    whole = L1Laplace(clip_norm=1.0, budget=Uniform(total_epsilon=20_000.0, horizon=100.0))
    # Only the last third of the clients hold labels 7 to 9, and their budgets are smaller. Labels
    # held by few clients can be learned only with larger steps and less noise.
    shy = Constant(
        total_epsilon=1.0, per_release=100.0, law=PerClient(values=(2000.0,) * 20 + (600.0,) * 10)
    )
    # Each fleet's config, and the mean times of ``YARDSTICK`` for 12 and 60 rounds, in seconds.
    worlds: dict[str, tuple[SimConfig, tuple[float, float]]] = {
        "alike": (base, (10.6, 51.1)),
        "sizes": (base.replace(learning=skewed), (10.6, 51.1)),
        "labels": (base.replace(learning=apart), (10.6, 51.1)),
        "spent": (base.replace(privacy=_noise(few)), (10.6, 51.0)),
        "noise": (base.replace(privacy=whole), (10.6, 51.1)),
        "tails": (base.replace(latency=Pareto()), (19.8, 98.7)),
        "drift": (base.replace(latency=Switching(period=50)), (13.5, 61.1)),
        "phones": (absent, (8.22, 42.6)),
        "measured": (phones, (112.0, 607.0)),
        "charging": (charging, (19.8, 108.0)),
        "large": (base.replace(num_clients=300, num_selected=15), (10.6, 54.0)),
        "tiers": (base.replace(privacy=_noise(tiers)), (10.4, 50.7)),
        "unequal": (base.replace(privacy=_noise(fading)), (10.6, 51.1)),
        "shy": (base.replace(privacy=_noise(shy, 0.02), learning=apart), (10.6, 46.3)),
    }
    return {
        name: Fleet(config, _by_label(samples) if config.learning == apart else samples, seconds)
        for name, (config, seconds) in worlds.items()
    }


def _noise(budget: Schedule, sensitivity: float = 0.003) -> PerCoordinateLaplace:
    return PerCoordinateLaplace(sensitivity=sensitivity, budget=budget)


@functools.cache
def _fashion(data_dir: str | None) -> Dataset:
    """Return the first 1,500 training and 500 test images of Fashion-MNIST."""
    try:
        whole = FashionMnist(data_dir=data_dir).load()
    except ConfigError as error:
        raise ConfigError(f"The fashion track needs data_dir (--data-dir). {error}") from None
    return _part(whole, slice(1500), slice(500))


def _by_label(samples: Dataset | None) -> Dataset:
    """Return a data set (default: Digits), sorted by label and split evenly among 30 clients."""
    whole = samples or Digits().load()
    order = np.argsort(np.asarray(whole.y_train), kind="stable")
    return _part(whole, order, slice(None), clients=np.arange(len(order)) * 30 // len(order))


def _part(whole: Dataset, train: Any, test: slice, clients: np.ndarray | None = None) -> Dataset:
    """Return the part of a data set selected by a training index and a test index."""
    inputs = np.asarray(whole.x_train)[train], np.asarray(whole.y_train)[train]
    tests = np.asarray(whole.x_test)[test], np.asarray(whole.y_test)[test]
    pixel_max = int(whole.pixel_max) or None
    return Dataset.of(*inputs, *tests, clients=clients, pixel_max=pixel_max)
