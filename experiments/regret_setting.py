"""The network in which regret is measured: BSFL's, K = 20, m = 5, alpha = 3, beta = 1.2."""

from __future__ import annotations

import pathlib

import xarray as xr
from matplotlib.figure import Figure

from experiments import figures
from pause_jax import Reward, SimConfig
from pause_jax.analysis.plotting import plot_regret
from pause_jax.latency import Latency, TwoGroups
from pause_jax.policies import PolicyConfig
from pause_jax.privacy import NoPrivacy


def config(policy: PolicyConfig, rounds: int, latency: Latency | None = None) -> SimConfig:
    """A bandit-only run of the setting; without privacy no budget ends it."""
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


def draw(
    panels: dict[str, xr.DataArray], out: pathlib.Path, name: str = "regret", scale: str = "log"
) -> None:
    """Curves of cumulative regret, one panel each, on axes of a scale: ``out/figures/NAME.png``."""
    figure = Figure(figsize=(5.5 * len(panels), 4.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for (title, curves), panel in zip(panels.items(), axes, strict=True):
        plot_regret(curves, panel)
        panel.set_title(title, fontsize="medium")
        panel.set(xscale=scale, yscale=scale)
    figures.save(figure, out, name)
