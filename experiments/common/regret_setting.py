"""BSFL's network for regret measurements: K = 20, m = 5, alpha = 3, beta = 1.2."""

from __future__ import annotations

import itertools
import math
import pathlib

import jax
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from experiments.common import figures
from experiments.common.claims import Claim
from pause_jax import Reward, SimConfig, regret, simulate
from pause_jax.analysis.plotting import plot_regret
from pause_jax.policies import Genie, PolicyConfig
from pause_jax.privacy import NoPrivacy
from pause_jax.world.latency import Latency, TwoGroups

# Least exponent d ln R / d ln n that counts as linear, our choice. A line has exponent 1.
LINE = 0.9
EXPONENT = "exponent over the last decade"


def logarithmic(text: str, curves: xr.DataArray) -> Claim:
    """Return the claim that regret [seed, round] ends nearer to a logarithm than a square root."""
    edge = halfway(curves.sizes["round"])
    return _grown(text, curves)._replace(below=edge, note=f"halfway is {edge:.3f}")


def halfway(rounds: int) -> float:
    """Return the exponent halfway between a logarithm and a square root over the last decade.

    Their exponents are 1 / ln n, in the middle of the decade, and 1 / 2.
    """
    return (1 / (math.log(rounds) - math.log(10) / 2) + 0.5) / 2


def linear(text: str, curves: xr.DataArray) -> Claim:
    """Return the claim that regret [seed, round] is linear or faster in its last decade."""
    return _grown(text, curves)._replace(above=LINE, note=f"claimed: above {LINE:g}")


def _grown(text: str, curves: xr.DataArray) -> Claim:
    fit, seeds = regret.growth(curves.values), curves.sizes["seed"]
    return Claim(text, "mean", fit.exponent, fit.exponent_error, seeds, unit=EXPONENT)


def config(policy: PolicyConfig, rounds: int, latency: Latency | None = None) -> SimConfig:
    """Return a bandit-only config without privacy, and thus without budgets."""
    return SimConfig(
        num_clients=20,
        num_selected=5,
        num_rounds=rounds,
        policy=policy,
        reward=Reward(alpha=3.0, beta=1.2, gamma=0.0),
        latency=TwoGroups() if latency is None else latency,
        privacy=NoPrivacy(),
        learning=None,
    )


def second_best(rounds: np.ndarray) -> np.ndarray:
    """Return the gap between the best and second best cohort in rounds of the genie's history.

    Cohorts that tie with the best one are skipped. The gaps are float64, one per round.
    """
    own = config(Genie(), int(rounds.max()))
    clients = np.asarray(simulate(own, jax.random.key(0), record=("clients",)).clients)
    speed = np.asarray(own.latency.expected_speed(own.num_clients), np.float64)
    m, alpha, beta = own.num_selected, float(own.reward.alpha), float(own.reward.beta)
    sets = np.array(list(itertools.combinations(range(own.num_clients), m)))
    slowest, gaps = speed[sets].min(axis=1), np.empty(len(rounds))
    for i, t in enumerate(rounds):
        counts = np.bincount(clients[: t - 1].ravel(), minlength=own.num_clients)
        x = m / own.num_clients - counts / t
        g = np.sign(x) * np.abs(x) ** beta
        value = slowest + alpha / m * g[sets].sum(axis=1)
        behind = value.max() - value
        gaps[i] = behind[behind > 1e-12].min()
    return gaps


def draw(
    panels: dict[str, xr.DataArray], out: pathlib.Path, name: str = "regret", scale: str = "log"
) -> None:
    """Draw cumulative regret, one panel per title, on log or linear axes, as ``NAME.png``."""
    figure = Figure(figsize=(5.5 * len(panels), 4.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for (title, curves), panel in zip(panels.items(), axes, strict=True):
        plot_regret(curves, panel, scale)
        panel.set_title(title, fontsize="medium")
    figures.save(figure, out, name)
