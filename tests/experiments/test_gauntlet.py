"""The gauntlet: paired verdicts with one correction, and runs that are kept."""

import numpy as np
import pandas as pd
import pytest

from experiments.gauntlet import run
from experiments.gauntlet.fleets import LEFT_OUT, MEANING, YARDSTICK, fleets, policies
from experiments.gauntlet.verdicts import best_of, judged
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
    assert best_of(found["early"]["one"]) == ["good"]
    alike = judged({"one": table(random=80, a=80.1, b=80)}, ["early"], "random")
    assert set(best_of(alike["early"]["one"])) == {"random", "a", "b"}


def test_all_comparisons_are_corrected_together():
    tables = {fleet: table(random=80, good=82) for fleet in ("one", "two", "three")}
    one, all_of_them = (
        judged(of, ["early", "late"], "random")["early"]["one"]["good"]
        for of in ({"one": tables["one"]}, tables)
    )
    assert (one.together, all_of_them.together) == (2, 6)
    assert one.ahead == all_of_them.ahead
    assert one.half < all_of_them.half


@pytest.mark.slow
def test_a_fleet_runs_small_and_what_is_kept_is_not_run_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "ROUNDS", {"early": 2, "late": 4})
    arguments = {"seeds": 2, "only": "tiers", "out": tmp_path}
    run.main(choose="random,fastest", **arguments)
    first = (tmp_path / "output.txt").read_text()
    assert "fastest" in first
    assert "all 2 intervals hold at once" in first
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
