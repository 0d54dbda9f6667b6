"""The papers' figures that need no data: each runs small, and its checks can fail."""

import pathlib

import numpy as np
import pytest
import typer

from experiments.bsfl_fig_2 import run as bsfl_fig_2
from experiments.bsfl_figs_5_6 import run as bsfl_figs_5_6
from experiments.common.reward_curve import curves
from experiments.pause_fig_1 import run as pause_fig_1

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("run", [pause_fig_1, bsfl_fig_2])
def test_reward_curve_runs_as_kept(run, tmp_path):
    run.main(out=tmp_path)
    kept = pathlib.Path(run.__file__).parent / "output.txt"
    # Rounding may differ between machines; what was checked and found may not.
    assert (tmp_path / "output.txt").read_text().count("\nok ") == kept.read_text().count("\nok ")
    assert (tmp_path / "figures" / "generalization_reward.png").is_file()


def test_reward_curve_checks_can_fail(tmp_path, capsys):
    with pytest.raises(typer.Exit):
        pause_fig_1.main(clients=29, out=tmp_path)
    printed = capsys.readouterr().out
    assert "FAIL beta = 2: g at 0 and 1" in printed
    assert "FAIL zero at the rate m/K" in printed  # 600 * 5 / 29 is no whole number
    assert "ok   falls as the rate rises" in printed


def test_curves_at_hand_computed_points():
    g = curves((1.0, 3.0), clients=10, selected=2, rounds=10)
    assert g.sel(beta=1.0, rate=0.1).item() == pytest.approx(0.1)
    assert g.sel(beta=3.0, rate=0.5).item() == pytest.approx(-0.027)


@pytest.mark.nightly
def test_observations_count_every_slot_and_order_the_groups(monkeypatch):
    for name, only in (("ALPHAS", "alpha = 0"), ("BETAS", "beta = 0.1")):
        monkeypatch.setattr(bsfl_figs_5_6, name, {only: getattr(bsfl_figs_5_6, name)[only]})
    observations = bsfl_figs_5_6.simulate(clients=60, selected=6, rounds=600, every=200, seeds=2)
    assert observations["round"].values.tolist() == [200, 400, 600]
    np.testing.assert_allclose(6 * observations.sum("group"), 6 * 200)
    whole = observations.sum("round")
    greedy = whole.sel(config="alpha = 0").mean("seed").values
    assert greedy.argmax() == 0
    assert greedy[0] > 1.5 * greedy[-1]
    # beta = 0.1 leaves latency no say.
    assert np.ptp(whole.sel(config="beta = 0.1").values) < 2


@pytest.mark.nightly
def test_bsfl_figs_5_6_runs_small_and_its_checks_can_fail(tmp_path, capsys):
    # In 40 rounds there is hardly anything but exploration: the checks must say so.
    with pytest.raises(typer.Exit):
        bsfl_figs_5_6.main(clients=60, selected=6, rounds=40, every=10, seeds=1, out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() == printed
    # One turn each in the first 10 rounds.
    assert "Jain's index: 1.000, at least 0.95" in printed
    assert "FAIL higher alpha: more equal" in printed
    for figure in ("fig_5_alpha.png", "fig_6_beta.png"):
        assert (tmp_path / "figures" / figure).is_file()
