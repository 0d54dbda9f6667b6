"""Tables for papers against NumPy, and corrections that differ where they must."""

import numpy as np
import pytest
import scipy.stats
import xarray as xr

from pause_jax import ConfigError
from pause_jax.analysis.tables import paper_table

SEEDS = 6
RNG = np.random.default_rng(0)
WORLD = RNG.normal(0, 5, SEEDS)


def values(leads):
    """Accuracies [config, seed] in common worlds, with these mean leads over ``random``."""
    rows = [70 + WORLD + lead + RNG.normal(0, 1, SEEDS) for lead in leads.values()]
    return xr.DataArray(rows, {"config": list(leads)}, ("config", "seed"))


def test_cells_are_those_of_numpy():
    data = values({"random": 0, "better": 6, "same": 0})
    table = paper_table({"%": data}, "random", digits=3)
    rows = data.values
    for row, name in enumerate(data.config.values):
        error = rows[row].std(ddof=1) / np.sqrt(SEEDS)
        assert table.loc[name, "%"] == f"{rows[row].mean():.3f} ± {error:.3f}"
    lead = rows[1] - rows[0]
    half = scipy.stats.t.isf(0.05 / 2 / 2, SEEDS - 1) * lead.std(ddof=1) / np.sqrt(SEEDS)
    low, high = lead.mean() - half, lead.mean() + half
    cell = f"{lead.mean():+.3f} [{low:+.3f}, {high:+.3f}] *"
    assert table.loc["better", "%, against random"] == cell
    assert not table.loc["same", "%, against random"].endswith("*")
    assert table.loc["random", "%, against random"] == "-"


def stars(correction, p_values):
    """Which configs are significant if their t-tests have these p-values."""
    spread = np.array([1.0, -1.0] * (SEEDS // 2))
    error = spread.std(ddof=1) / np.sqrt(SEEDS)
    rows = [scipy.stats.t.isf(p / 2, SEEDS - 1) * error + spread for p in p_values]
    names = ["random", *(f"p = {p}" for p in p_values)]
    data = xr.DataArray([np.zeros(SEEDS), *rows], {"config": names}, ("config", "seed"))
    column = paper_table({"%": data}, "random", correction=correction)["%, against random"]
    return [cell.endswith("*") for cell in column[1:]]


def test_holm_rejects_more_than_bonferroni_and_less_than_no_correction():
    assert stars("bonferroni", [0.01, 0.02, 0.04]) == [True, False, False]
    assert stars("holm", [0.01, 0.02, 0.04]) == [True, True, True]
    assert stars("holm", [0.02, 0.03, 0.04]) == [False, False, False]


def test_latex_has_rules_escapes_and_the_best_mean_in_bold():
    seconds = values({"sa_pause": 0, "random": 9})
    text = paper_table(
        {"s to 80 %": seconds}, "random", lower_is_better=["s to 80 %"], markup="latex"
    ).to_latex(escape=False)
    assert r"\toprule" in text
    assert r"s to 80 \%" in text
    (bold,) = [line for line in text.splitlines() if r"\mathbf" in line]
    assert bold.startswith(r"sa\_pause & $\mathbf{")
    assert r"\pm" in bold


def test_config_without_all_seeds_has_neither_mean_nor_difference():
    data = values({"random": 0, "often": 3})
    data[1, 2] = np.nan
    table = paper_table({"%": data}, "random", markup="markdown")
    assert table.loc["often"].tolist() == ["-", "-"]
    assert table.loc["random", "%"].startswith("**")


def test_unknown_choices_are_refused():
    data = values({"random": 0, "better": 6})
    for choice in ({"correction": "none"}, {"markup": "html"}, {"against": "rondom"}):
        with pytest.raises(ConfigError, match="must be one of"):
            paper_table({"%": data}, **{"against": "random", **choice})
