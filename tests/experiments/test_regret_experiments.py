"""The experiments on regret run, at small size; their full output is kept beside them."""

import json
import math
import pathlib
import re

import numpy as np
import pytest
import xarray as xr

import experiments
from experiments.best_mixture import run as best_mixture
from experiments.bsfl_figs_7_10 import run as bsfl_figs_7_10
from experiments.common.outcome import Outcome
from experiments.index_rules import run as index_rules
from experiments.regret_bound import run as regret_bound
from experiments.regret_horizon import run as regret_horizon
from experiments.regret_policies import run as regret_policies
from tests.experiments.test_search_experiments import run_small

pytestmark = pytest.mark.slow

HERE = pathlib.Path(experiments.__file__).parent


def test_decade_ratios_of_known_curves():
    n = np.arange(1, 100_001)
    assert set(regret_horizon.decade_ratios(np.log(n)[None])) == {10, 100, 1000, 10_000}
    for curve, ratio in ((5 * np.log(n) + 1, 1), (n**0.5, 10**0.5), (3.0 * n, 10)):
        found = regret_horizon.decade_ratios(np.stack([curve, 2 * curve]))
        assert found[10_000] == pytest.approx(ratio, rel=2e-3)
    assert math.isnan(regret_horizon.decade_ratios(np.zeros((2, 1000)))[100])
    # From the end of one decade to that of the next, to the round.
    found = regret_horizon.decade_ratios((np.arange(1, 1001) ** 2.0)[None])
    assert found == {10: (100**2 - 10**2) / (10**2 - 1), 100: pytest.approx(100)}


def test_the_table_of_index_rules_is_that_of_the_kept_output():
    found: dict[str, list[str]] = {}
    for line in (HERE / "index_rules" / "output.txt").read_text().splitlines():
        if row := re.match(r"(\w+) +([\d.]+) \+- +([\d.]+) ", line):
            found.setdefault(row[1], []).append(f"{float(row[2]):.0f} ± {float(row[3]):.0f}")
    table = re.findall(
        r"^\| (\w+)(?: \(.*\))? \| (.*) \| (.*) \|$",
        (HERE / "index_rules" / "README.md").read_text(),
        re.MULTILINE,
    )
    assert {name: list(cells) for name, *cells in table} == found
    assert len(found) == 4


@pytest.mark.nightly
def test_regret_policies_runs_small(tmp_path):
    only = "pause,genie,random"
    text = run_small(regret_policies, tmp_path, rounds=300, seeds=2, steps=5, only=only)
    assert "ok   genie has no regret" in text
    assert "ok   pause is below the bound of bsfl" in text
    assert text.count(" is linear: exponent") == 1
    assert text.count(" is sublinear: exponent") == 1
    (annealed,) = regret_policies.policies(["sa_pause"], 5).values()
    assert "steps=5," in repr(annealed)


@pytest.mark.nightly
def test_index_rules_runs_small(tmp_path, monkeypatch):
    monkeypatch.setattr(index_rules, "RULES", index_rules.RULES[::2])
    text = run_small(index_rules, tmp_path, rounds=200, seeds=2)
    assert text.count("ucb_v ") == 2
    assert "less regret at" not in text, "the rounds asked for lie beyond the run"


@pytest.mark.nightly
def test_a_round_of_pause_has_at_most_two_widths_of_regret(tmp_path, monkeypatch):
    table = regret_bound.add_policies  # of a tenth of the rounds: other programs
    monkeypatch.setattr(
        regret_bound,
        "add_policies",
        lambda outcome, policies, rounds, key: table(outcome, policies, 10 * rounds, key),
    )
    regret_bound.main(out=tmp_path, rounds=1000, seeds=1, only="pause,bsfl,fastest")
    text = (tmp_path / "output.txt").read_text()
    assert (
        text.count("\nok ")
        == (HERE / "regret_bound" / "output.txt").read_text().count("\nok ")
        == 6
    )
    assert "outside its width: 0" in text
    assert (tmp_path / "figures" / "regret_bound.png").is_file()


@pytest.mark.nightly
def test_the_best_mixture_earns_more_than_the_genie(tmp_path, monkeypatch):
    few = (
        "genie",
        "pause",
        "mixture",
        "round_robin",
        "speed_turns",
    )  # those that the checks are about
    policies = {name: best_mixture.POLICIES[name] for name in few}
    monkeypatch.setattr(best_mixture, "POLICIES", policies)
    text = run_small(best_mixture, tmp_path, rounds=10_000, seeds=1, starts=1)
    kept = (HERE / "best_mixture" / "output.txt").read_text()
    assert text.count("\nok ") == kept.count("\nok ") == 7


def test_a_mixture_of_pairs_has_the_rate_of_its_definition():
    slowest, faster = np.zeros((20,)), np.zeros((20, 20))
    slowest[[5, 9]] = 0.25, 0.75
    faster[5, :4], faster[9, [0, 1, 6, 7]] = 0.25, 0.75
    cohorts = [(0, 1, 2, 3, 5)] + 3 * [(0, 1, 6, 7, 9)]
    share = np.bincount(np.ravel(cohorts), minlength=20) / 4
    rate = 0.0
    for cohort in cohorts:
        x = 5 / 20 - share[list(cohort)]
        rate += (
            best_mixture.SPEED[list(cohort)].min() + 3 / 5 * (np.sign(x) * abs(x) ** 1.2).sum()
        ) / 4
    assert best_mixture.Mixture(slowest, faster).rate == pytest.approx(rate)


@pytest.mark.nightly
def test_regret_horizon_runs_small(tmp_path):
    text = run_small(regret_horizon, tmp_path, rounds=1000, seeds=2)
    assert "FAIL thompson, alpha = 0: last ratio" in text, "the control is no logarithm so soon"
    assert "it shrinks like t^-" in text


def test_bsfl_figs_7_10_judges_each_horizon_by_itself(tmp_path):
    """Lines that bend after the paper's 200 rounds: what holds at the end does not hold there."""
    n = np.arange(1, 2001)
    bent = np.where(n <= 200, n, 200 * (n / 200.0) ** 0.3)
    names = {"bsfl": bent, "alsa": 1.1 * bent, "rbcs_f": 1.05 * n, "random": 3.0 * n}
    curves = xr.DataArray(
        np.stack([np.tile(curve, (2, 1)) for curve in names.values()]),
        {"config": list(names), "round": n},
        ("config", "seed", "round"),
    )
    rules = json.loads((HERE / "bsfl_figs_7_10" / "expected.json").read_text())
    short = bsfl_figs_7_10.shown(curves.isel(round=slice(200)), rules, 0.75)
    failed = {name for name, (_, so) in short.items() if not so}
    assert failed == {"bsfl sublinear", "alsa sublinear", "bsfl least"}
    assert all(so for _, so in bsfl_figs_7_10.shown(curves, rules, 0.75).values())

    outcome = Outcome("")
    title = next(iter(rules["paper_rounds"]))
    rules["not_at_paper_rounds"][title] = ["bsfl sublinear", "alsa sublinear"]
    bsfl_figs_7_10.judge(outcome, title, curves, rules)
    assert all(outcome.checks.values())
    rules["not_at_paper_rounds"][title] = []
    bsfl_figs_7_10.judge(outcome, title, curves, rules)
    assert list(outcome.checks.values()).count(False) == 1
