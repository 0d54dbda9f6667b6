"""Generalization reward as a curve: PAUSE Fig. 1 and BSFL Fig. 2 show the same quantity."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.figure import Figure

from experiments.common.claims import exact
from experiments.common.outcome import Outcome
from pause_jax.bandit.reward import generalization_reward


def curves(betas: Sequence[float], clients: int, selected: int, rounds: int) -> xr.DataArray:
    """Return g [beta, rate] of a client with 1/K of the data, for T_k = 0, 1, ..., rounds."""
    counts = jnp.arange(rounds + 1)
    share = jnp.full(rounds + 1, 1 / clients)
    g = [generalization_reward(counts, rounds, share, selected, beta) for beta in betas]
    coords = {"beta": list(betas), "rate": np.arange(rounds + 1) / rounds}
    return xr.DataArray(np.stack(g), coords, dims=("beta", "rate"))


def compare(
    figure: str,
    g: xr.DataArray,
    clients: int,
    selected: int,
    expected: dict[str, Any],
    outcome: Outcome,
) -> None:
    """Add the ends and zero of the curves, the checks, and the paper's claims on ``figure``."""
    rules = expected["checks"]
    target = selected / clients
    zero = round(target * (g.sizes["rate"] - 1))
    ends = {float(beta): values for beta, values in expected["first_and_last"].items()}
    outcome.add(f"{'beta':>5} {'g at 0':>9} {'g at m/K':>9} {'g at 1':>9}")
    for beta in g.beta.values:
        first, middle, last = g.sel(beta=beta).values[[0, zero, -1]]
        outcome.add(f"{beta:5g} {first:9.5f} {middle:9.5f} {last:9.5f}")
        off = np.abs(np.subtract([first, last], ends[beta])).max()
        outcome.check(
            f"beta = {beta:g}: g at 0 and 1 within {rules['ends_within']:g} of {ends[beta]}",
            off <= rules["ends_within"],
        )
    at_zero = np.abs(g.values[:, zero]).max()
    outcome.check(
        f"zero at the rate m/K = {target:.4f}: |g| = {at_zero:.1e}, "
        f"at most {rules['zero_within']:g}",
        at_zero <= rules["zero_within"],
    )
    odd = np.abs(g.values[:, : zero + 1] + g.values[:, zero : 2 * zero + 1][:, ::-1]).max()
    outcome.check(
        f"odd around m/K: |g(m/K + x) + g(m/K - x)| = {odd:.1e}, at most {rules['odd_within']:g}",
        odd <= rules["odd_within"],
    )
    size = np.delete(np.abs(g.values), zero, axis=1)
    of = f"{g.beta.size} beta, {g.rate.size} rates"
    family = []
    for what, holds in (
        ("falls as the rate rises, everywhere", (np.diff(g.values, axis=1) < 0).all()),
        ("higher beta, lower |g|, everywhere but at m/K", (np.diff(size, axis=0) < 0).all()),
        (f"|g| is at most {rules['size']:g}", size.max() <= rules["size"]),
    ):
        outcome.check(what, holds)
        family.append(exact(f"{figure}: {what}", holds, of))
    zero_at = exact(f"{figure}: zero at m/K", at_zero <= rules["zero_within"], f"{at_zero:.1e}")
    outcome.judge([*family, zero_at])


def draw(g: xr.DataArray, target: float, x_label: str, file: pathlib.Path) -> None:
    """Write the figure to ``file``."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for i, beta in enumerate(g.beta.values):
        colour = colormaps["viridis"](0.9 * i / max(g.sizes["beta"] - 1, 1))
        axes.plot(g.rate, g.sel(beta=beta), color=colour, label=f"$\\beta = {beta:g}$")
    axes.axhline(0, color="0.7", lw=0.8, zorder=0)
    axes.axvline(target, color="0.7", lw=0.8, ls="--", zorder=0)
    axes.annotate("m / K", (target, axes.get_ylim()[0]), (3, 3), textcoords="offset points")
    axes.set(xlabel=x_label, ylabel="generalization reward $g_k$")
    axes.legend(fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
