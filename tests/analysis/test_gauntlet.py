"""The benchmark: statistics against enumeration and simulation, runs against kept scores."""

import itertools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import pause_jax
from pause_jax import ConfigError
from pause_jax.analysis.gauntlet import board, fleets, play, standings
from pause_jax.policies import NAMED, Random, named
from pause_jax.run.contract import BrokenContract

FLEETS = ("quick", "slow")
RNG = np.random.default_rng(0)


def scores(leads):
    """Readings of policies with these leads over ``random`` in worlds that all share."""
    shape = (len(FLEETS), fleets.SEEDS)
    worlds = RNG.normal(60, 10, shape)
    rows = [worlds + lead + 0.1 * abs(lead) * RNG.normal(size=shape) for lead in leads.values()]
    reading = (("policy", "fleet", "seed"), np.stack(rows))
    names = {"policy": list(leads), "fleet": list(FLEETS), "seed": range(fleets.SEEDS)}
    return xr.Dataset(dict.fromkeys(play.READINGS, reading), names)


def test_interval_of_the_median_has_the_coverage_of_the_sign_test():
    """Of 16 differences, the second smallest and largest bound it if 2 x 17 / 2^16 is allowed."""
    differences = RNG.normal(size=fleets.SEEDS)
    ordered = np.sort(differences)
    for together, cut in ((1, 4), (28, 2), (200, 1)):
        low, high = map(float, standings.interval(differences, together))
        assert (low, high) == (ordered[cut - 1], ordered[-cut])
    below = [sum(signs) for signs in itertools.product((0, 1), repeat=16)]
    assert 2 * np.mean(np.array(below) <= 1) <= 0.05 / 28 < 2 * np.mean(np.array(below) <= 2)
    assert [float(end) for end in standings.interval(differences[:4])] == [-np.inf, np.inf]


@pytest.mark.parametrize("spread", ["normal", "lognormal", "two_values"])
def test_all_intervals_hold_together_in_95_percent_of_tables(spread):
    draw = {
        "normal": lambda size: RNG.normal(size=size),
        "lognormal": lambda size: RNG.lognormal(size=size) - 1,
        "two_values": lambda size: RNG.choice([-1.0, 9.0], size=size),
    }[spread]
    tables, cells = 2000, 28
    differences = draw((tables, cells, fleets.SEEDS))
    median = 0.0 if spread != "two_values" else np.nan

    def wrong(together):
        low, high = standings.interval(differences, together)
        if np.isnan(median):  # any value between the two is a median
            return ((low > 9.0) | (high < -1.0)).any(axis=1).mean()
        return ((low > median) | (high < median)).any(axis=1).mean()

    assert wrong(cells) <= 0.05
    if spread != "two_values":
        assert wrong(1) > 0.3, "intervals without correction cannot be told apart"


def test_better_policy_is_marked_and_ranked_first_and_a_copy_is_level():
    found = scores({"random": 0.0, "better": 8.0, "worse": -8.0, "copy": 0.0})
    better, worse, copy = (standings.standings(found, name) for name in ("better", "worse", "copy"))
    for time in standings.TIMES:
        assert list(better[f"{time}_mark"]) == list(worse[f"{time}_mark"]) == ["*", "*"]
        assert (better[f"{time}_low"] > 0).all()
        assert (worse[f"{time}_high"] < 0).all()
        assert list(copy[f"{time}_mark"]) == ["", ""]
        assert list(better[f"{time}_rank"]) == [1, 1]
        assert list(worse[f"{time}_of"]) == [4, 4]
    own = found.late.sel(policy="better", fleet="slow").values
    lead = own - found.late.sel(policy="random", fleet="slow").values
    assert better.loc["slow", "late_lead"] == np.median(lead)
    assert standings.conclusion(better, "better") == " ".join(
        f"{time} in the runs, better is ahead of random on 2 of 2 fleets (quick and slow) and "
        "behind on 0 of 2 fleets."
        for time in ("Early", "Late")
    )


def test_fleet_on_which_a_policy_cannot_run_has_no_mark():
    found = scores({"random": 0.0, "mine": 8.0})
    found = found.where((found.policy != "mine") | (found.fleet != "slow"))
    table = standings.standings(found, "mine")
    assert list(table["late_mark"]) == ["*", ""]
    text = standings.formatted(table)
    assert set(text.loc["slow"]) == {"-"}
    assert text.loc["quick", "late lead"].endswith("]*")
    assert "of 1 fleets" in standings.conclusion(table, "mine")


def test_board_has_every_fleet_policy_and_seed():
    found = fleets.fleets()
    kept = board.read(found, "digits")
    assert list(kept.fleet.values) == list(found)
    assert len(found) == fleets.FLEETS
    assert set(kept.policy.values) == set(NAMED) - {"pause_exhaustive"}
    assert kept.sizes["seed"] == fleets.SEEDS == 16
    assert set(kept.data_vars) == set(play.READINGS)
    missing = kept.late.isnull()
    assert bool((missing.any("seed") == missing.all("seed")).all())
    for name, fleet in found.items():
        assert fleet.config.shuffle_clients
        for policy in kept.policy.values:
            refused = bool(board.refusal(fleet, named(policy)))
            assert refused == bool(missing.sel(policy=policy, fleet=name).all())
    best = board.read(found, "digits", tuned=True)
    for policy in best.policy.values:
        changed = best.settings.sel(policy=policy) != "{}"
        same = best.late.sel(policy=policy).equals(kept.late.sel(policy=policy))
        assert changed == (not same), policy
    assert board.path("digits").stat().st_size < 10**6


@pytest.mark.nightly
def test_board_of_fashion_has_its_fleets(shared):
    folder = str(shared / "data" / "tfds")
    found = fleets.fleets("fashion", folder)
    assert len(found) == fleets.FLEETS
    for tuned in (False, True):
        kept = board.read(found, "fashion", tuned=tuned)
        assert list(kept.fleet.values) == list(found)
        assert kept.late.notnull().sum() > 40 * len(found) * 16


def test_changed_fleet_is_refused_before_any_run(monkeypatch):
    whole = fleets.fleets()
    config = whole["tails"].config.replace(num_clients=31)
    changed = whole | {"tails": whole["tails"]._replace(config=config)}
    monkeypatch.setattr(board, "fleets", lambda *_: changed)
    monkeypatch.setattr(board, "play", None)
    with pytest.raises(ConfigError, match="fleet 'tails': version 1 has no stored scores"):
        pause_jax.gauntlet("random", only=["tails"])
    assert board.read({"drift": changed["drift"]}, "digits").sizes["fleet"] == 1


def test_unknown_fleet_and_unable_policy_are_refused_before_any_run(monkeypatch):
    monkeypatch.setattr(board, "play", None)
    with pytest.raises(ConfigError, match="fleet 'tail': must be one of alike"):
        pause_jax.gauntlet("random", only=["tail"])
    with pytest.raises(ConfigError, match=r"pause cannot run on any fleet\. exhaustive search"):
        pause_jax.gauntlet("pause_exhaustive", only=["large"])


class Fails(Random):
    """A policy with a fault."""

    name = "fails"

    def build(self, context):
        raise RuntimeError("a fault of its own")


class Doubles(Random):
    """A policy that chooses the same client m times."""

    name = "doubles"

    def build(self, context):
        policy = super().build(context)

        def select(key, state, round, available):
            selection, info = policy.select(key, state, round, available)
            return selection._replace(clients=0 * selection.clients), info

        return policy._replace(select=select)


@pytest.mark.nightly
def test_policies_that_read_losses_and_keep_updates_run_and_a_fault_is_shown():
    fleet = fleets.fleets()["labels"]._replace(seconds=(3.0, 9.0))
    policies = {name: named(name) for name in ("random", "power_of_choice", "divfl", "pause")}
    found = play.play(fleet, policies, seeds=slice(3, 5), progress=False)
    assert list(found.seed.values) == [3, 4]
    assert bool((found.late > 0).all())
    assert bool((found.worst_tenth <= found.late + 5).all())
    alone = play.play(fleet, {"pause": named("pause")}, seeds=slice(4, 5), progress=False)
    np.testing.assert_allclose(
        alone.late.sel(policy="pause", seed=4), found.late.sel(policy="pause", seed=4), atol=1.0
    )
    with pytest.raises(RuntimeError, match="a fault of its own"):
        play.play(fleet, {"fails": Fails()}, progress=False)
    with pytest.warns(BrokenContract, match="chose a client twice"):
        play.play(fleet, {"doubles": Doubles()}, seeds=slice(1), progress=False)


OWN = """
from pause_jax.policies import Random, RoundRobin

class Mine(Random):
    name = "random_of_mine"

class Other(RoundRobin):
    name = "turns_of_mine"
"""


@pytest.mark.nightly
def test_command_writes_tables_and_a_copy_of_random_is_level(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "pause_jax", "gauntlet", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip

    several = run("mine.py", "--only", "tails")
    assert several.returncode == 2
    assert "mine.py has the policy classes Mine, Other. Pass mine.py:CLASS" in " ".join(
        several.stderr.split()
    )
    assert not list(tmp_path.glob("results/*"))
    done = run("mine.py:Mine", "--only", "tails")
    assert done.returncode == 0, done.stderr
    conclusion = "random_of_mine is ahead of random on 0 of 1 fleets and behind on 0 of 1 fleets."
    assert f"Late in the runs, {conclusion}" in " ".join(done.stdout.split())
    assert "Server time per round on tails: " in " ".join(done.stdout.split())
    folder = tmp_path / "results" / "gauntlet-random_of_mine"
    names = {"heatmap.pdf", "scores.nc", "standings.csv", "standings.md", "standings.tex"}
    assert {path.name for path in folder.iterdir()} == names
    lines = (folder / "standings.md").read_text().splitlines()
    assert [cell.strip() for cell in lines[0].split("|")][1:3] == ["fleet", "early, %"]
    assert len(lines) == 3
    latex = (folder / "standings.tex").read_text()
    setting = "digits track, other policies with default parameters"
    assert rf"\caption{{Gauntlet version 1 ({setting}): accuracy of random\_of\_mine" in latex
    assert r"\toprule" in latex
    assert "tails" in latex
    table = pd.read_csv(folder / "standings.csv", index_col="fleet")
    # Some predictions differ on processors that round differently.
    ends = table.loc["tails", ["late_lead", "late_low", "late_high"]].astype(float)
    assert np.abs(ends).max() < 1
    assert table.loc["tails", "late_of"] == 46


def test_server_time_grows_with_the_work_of_a_choice():
    fleet = fleets.fleets()["alike"]
    quick, slow = (
        play.server_seconds(fleet, named(name), rounds=20)
        for name in ("random", "clustered_similarity")
    )
    assert 0 < 5 * quick < slow  # 200 times on one machine


@pytest.mark.slow
def test_replayed_runs_match_the_stored_ones():
    """Only up to rounding: the board was computed on another type of processor."""
    runs = [board.verify(n, only=["alike", "drift"], tuned=n == 1, seed=1) for n in (1, 2)]
    replayed = pd.concat(runs, ignore_index=True)
    differences = np.abs(replayed["replayed"] - replayed["stored"])
    assert differences.max() < 2.5, replayed
    others = np.abs(replayed["replayed"] - replayed["stored"].to_numpy()[[1, 2, 0]])
    assert others.mean() > differences.mean(), "runs cannot be told apart"
