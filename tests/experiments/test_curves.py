"""Long experiments: pieces, interruptions, and what is judged of their curves."""

import math

import jax
import numpy as np
import pandas as pd
import pytest

from experiments.common import curves, learning_figure
from experiments.common.curves import Run, changes, key_of, play_all, runs_of
from experiments.common.learning_figure import Curves
from pause_jax import SimConfig, simulate
from pause_jax.config.presets import mnist_small
from tests.support.runs import LEARN

pytestmark = pytest.mark.slow

CONFIG = LEARN.override({"num_rounds": 5, "eval_every": 2, "learning.keep_optimizer_state": True})
RUN = Run("pause, small", 3, CONFIG)


@pytest.fixture(scope="module", autouse=True)
def two_rounds_a_piece():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "PIECE", 2)
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return play_all([RUN], folder), folder


def test_a_run_in_pieces_is_the_run_of_simulate(undisturbed):
    table, folder = undisturbed
    result = simulate(CONFIG, key_of(3))
    np.testing.assert_allclose(table.clock, result.clock, rtol=1e-5)
    np.testing.assert_allclose(table.max_spent, result.max_spent, rtol=1e-5)
    evaluated = table[table.test_accuracy.notna()]
    assert list(evaluated["round"]) == list(np.asarray(result.eval_rounds)) == [2, 4, 5]
    np.testing.assert_allclose(evaluated.test_accuracy, result.test_accuracy, rtol=1e-5)
    assert [path.name for path in (folder / "runs").iterdir()] == ["pause_small-3.csv"]


def test_a_run_that_was_stopped_goes_on_with_the_same_result(undisturbed, tmp_path, monkeypatch):
    advance = curves._advance
    pieces: list[jax.Array] = []

    def dies_at_the_third(config, data, state, rounds, execution):
        if len(pieces) == 2:
            raise KeyboardInterrupt
        pieces.append(rounds)
        return advance(config, data, state, rounds, execution)

    monkeypatch.setattr(curves, "_advance", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        play_all([RUN], tmp_path)
    assert not list((tmp_path / "runs").glob("*.csv"))
    pieces.clear()
    play_all([RUN], tmp_path)
    assert [list(rounds) for rounds in pieces] == [[5]]
    file = "runs/pause_small-3.csv"
    assert (tmp_path / file).read_bytes() == (undisturbed[1] / file).read_bytes()


def test_a_finished_run_is_not_played_again_unless_its_config_changed(undisturbed, monkeypatch):
    table, folder = undisturbed
    monkeypatch.setattr(curves, "_play", lambda *given: pytest.fail("played again"))
    pd.testing.assert_frame_equal(play_all([RUN], folder), table)
    other = RUN._replace(config=CONFIG.replace(num_rounds=4))
    with pytest.raises(pytest.fail.Exception, match="played again"):
        play_all([other], folder)


def test_a_run_ends_at_its_horizon(undisturbed, tmp_path):
    table, _ = undisturbed
    seconds = float(table.clock[2]) - 1e-3  # passed by the third round
    ended = play_all([RUN._replace(config=CONFIG.replace(max_seconds=seconds))], tmp_path)
    assert list(ended["round"]) == [1, 2, 3]
    np.testing.assert_allclose(ended.clock, table.clock[:3], rtol=1e-6)
    # The end is evaluated, where the longer run is not.
    assert list(ended.test_accuracy.notna()) == [False, True, True]


def test_runs_come_seed_by_seed():
    names = [run.name for run in runs_of({"a": CONFIG, "b, c": CONFIG}, 2)]
    assert names == ["a-0", "b_c-0", "a-1", "b_c-1"]


def curve(label: str, seed: int, accuracy: list[float], seconds: float = 1.0) -> pd.DataFrame:
    rounds = np.arange(1, len(accuracy) + 1)
    return pd.DataFrame(
        {
            "round": rounds, "clock": seconds * rounds, "test_accuracy": accuracy,
            "max_spent": 0.1 * rounds, "label": label, "seed": seed,
        }
    )  # fmt: skip


def test_curves_are_smoothed_over_ten_rounds_whatever_is_evaluated():
    every = list(np.linspace(0.1, 0.4, 31))
    sparse = [value if (i + 1) % 5 == 0 else math.nan for i, value in enumerate(every)]
    found = Curves(pd.concat([curve("a", 0, sparse), curve("a", 1, every)]))
    assert list(found.smoothed("a", 0, "test_accuracy")["round"]) == [5, 10, 15, 20, 25, 30]
    last = found.smoothed("a", 0, "test_accuracy").value.iloc[-1]
    assert last == pytest.approx((every[24] + every[29]) / 2)
    assert found.last("a")[1] == pytest.approx(np.mean(every[-10:]))
    assert found.best("a")[1] == pytest.approx(np.mean(every[-10:]))
    # At 12.5 s round 12 was the last one.
    assert found.at_seconds("a", 12.5)[1] == pytest.approx(np.mean(every[2:12]))
    assert found.seconds_to("a", 0.395)[0] == math.inf
    assert found.seconds_to("a", 0.2)[1] == pytest.approx(
        1 + next(i for i in range(31) if np.mean(every[max(0, i - 9) : i + 1]) >= 0.2)
    )


def test_pictures_are_drawn(tmp_path):
    found = Curves(pd.concat([curve("a", s, [0.1, 0.2, 0.3], 1 + 0.1 * s) for s in range(3)]))
    learning_figure.save(
        [
            lambda axes: learning_figure.draw_curves(found, axes, "test_accuracy"),
            lambda axes: learning_figure.draw_leakage(found, axes, "round", "coordinate"),
        ],
        tmp_path,
        "both",
    )
    assert (tmp_path / "figures" / "both.png").stat().st_size > 10_000


def test_a_run_is_known_by_its_seed_and_by_what_its_config_changes():
    config = mnist_small()
    run = Run("x", 0, config)
    assert changes(SimConfig()) == {"name": ""}
    for same in (
        mnist_small(data_dir="elsewhere"),
        config.replace(stale_updates="lost", availability=1.0, dropout=None),
    ):
        assert run._replace(config=same).made_by == run.made_by
    assert run._replace(seed=1).made_by != run.made_by
    assert run._replace(config=mnist_small("random")).made_by != run.made_by
    for path, value in {"dropout": 0.1, "reward.gamma": 4.0, "latency.min_latency": 0.06}.items():
        assert run._replace(config=config.override({path: value})).made_by != run.made_by
