"""The gauntlet: sign tests with one correction, and runs that are kept."""

import numpy as np
import pandas as pd
import pytest

from experiments.gauntlet import run
from experiments.gauntlet.fleets import LEFT_OUT, MEANING, YARDSTICK, fleets, policies
from experiments.gauntlet.verdicts import Judgement, best_of, judged
from pause_jax.config import validate

SEEDS = 16


def table(**means: float) -> pd.DataFrame:
    """Accuracies of policies that meet the same worlds: a world's luck is larger than theirs."""
    rng = np.random.default_rng(0)
    luck = 5 * rng.standard_normal(SEEDS)
    each = {name: mean + luck + 0.5 * rng.standard_normal(SEEDS) for name, mean in means.items()}
    rows = pd.DataFrame(each).rename_axis("seed").reset_index()
    rows = rows.melt(id_vars="seed", var_name="policy", value_name="early")
    return rows.assign(late=rows.early[::-1].to_numpy())


def test_differences_of_pairs_are_found_and_noise_is_not():
    found = judged({"one": table(random=80, good=83, bad=76, same=80)}, ["early"], "random")
    marks = {name: each.mark for name, each in found["early"]["one"].items()}
    assert marks == {"random": "", "good": "+", "bad": "-", "same": ""}
    assert found["early"]["one"]["good"].ahead == pytest.approx(3, abs=0.5)


def test_all_comparisons_are_corrected_together():
    rows = table(random=80, good=82)
    lost = (rows.policy == "good") & (rows.seed < 3)
    rows.loc[lost, ["early", "late"]] = 0  # 13 of 16 worlds: p = 0.021
    one, all_of_them = (
        judged(dict.fromkeys(fleets, rows), ["early", "late"], "random")["early"]["one"]["good"]
        for fleets in (["one"], ["one", "two", "three"])
    )
    assert (one.together, all_of_them.together) == (2, 6)
    assert (one.mark, all_of_them.mark) == ("+", "")


@pytest.mark.parametrize(
    ("wins", "together", "marked"),
    [(16, 1056, True), (15, 1056, False), (13, 1, True), (12, 1, False), (0, 1, False)],
)
def test_a_mark_takes_a_significant_share_of_worlds_and_ties_count_against(wins, together, marked):
    lead = np.repeat([2.0, 0.0], [wins, SEEDS - wins])
    for sign, mark in ((1, "+"), (-1, "-")):
        assert Judgement(lead, sign * lead, together).mark == (mark if marked else "")


def test_best_policy_is_listed_with_those_that_beat_it_in_a_world():
    each = {"once": [0, 4], "best": [3, 3], "copy": [3, 3], "below": [2, 3], "near": [1, 3.5]}
    found = {name: Judgement(np.array(a), np.zeros(2), 1) for name, a in each.items()}
    assert best_of(found) == ["best", "near", "once"]


@pytest.mark.nightly
def test_a_fleet_runs_small_and_what_is_kept_is_not_run_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "ROUNDS", {"early": 2, "late": 4})
    arguments = {"seeds": 2, "only": "tiers", "out": tmp_path}
    run.main(choose="random,fastest", **arguments)
    first = (tmp_path / "output.txt").read_text()
    assert "fastest" in first
    assert "among 2 cells" in first
    assert (tmp_path / "figures" / "gauntlet.png").is_file()
    played = []
    monkeypatch.setattr(run, "sweep", lambda *given, **named: played.append(given))
    run.main(choose="random,fastest", **arguments)
    assert (tmp_path / "output.txt").read_text() == first
    assert not played
    capsys.readouterr()


def test_every_fleet_can_be_run_and_has_a_meaning():
    assert list(fleets()) == list(MEANING)
    assert YARDSTICK in policies()
    assert not set(LEFT_OUT) & set(policies())
    for name, (config, _) in fleets().items():
        validate(config)
        assert config.eval_every == 2, name
