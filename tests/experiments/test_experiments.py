"""The experiments run, at small size; their full output is kept beside them."""

import json
import pathlib

import pytest
import typer

from experiments.cifar10_small import run as cifar10_small
from experiments.mnist_mlp_30_5 import run
from pause_jax import presets
from pause_jax.learning import Digits, Learning, Mlp

pytestmark = pytest.mark.slow

HERE = pathlib.Path(run.__file__).parent
SMALL = Learning(data=Digits(num_train=60), model=Mlp(hidden=()), optimizer="sgd", max_steps=1)


@pytest.mark.nightly
def test_mnist_mlp_30_5_runs_small_and_its_checks_can_fail(tmp_path, monkeypatch, capsys):
    configs = {
        name: config.replace(learning=SMALL, track_regret=False)
        for name, config in run.configs(None, 4).items()
    }
    configs["sa_pause"] = configs["pause"]  # an annealed search is compiled too
    monkeypatch.setattr(run, "configs", lambda *given: {("folder", 4): configs}[given])
    # Four rounds do not reach the authors' seconds: the checks must say so.
    with pytest.raises(typer.Exit):
        run.main(data_dir="folder", seeds=2, rounds=4, out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() == printed
    assert printed.count("FAIL ") >= 6
    assert "FAIL pause: the authors' run is a draw from ours" in printed
    assert (tmp_path / "figures" / "accuracy_vs_seconds.png").is_file()


def test_the_expected_numbers_are_the_authors(shared):
    expected = json.loads((HERE / "expected.json").read_text())["authors"]
    folder = shared / "reference" / "pause_authors" / "mnist_mlp_30_5"
    assert list(expected) == list(run.configs(None, 1))
    for policy, file in zip(
        expected,
        ("pause_exhaustive", "sa_pause", "random", "fastest", "all_private", "all_nonprivate"),
        strict=True,
    ):
        curve = json.loads((folder / f"{file}.json").read_text())["curve"]
        theirs = expected[policy]
        assert theirs["last_round"] == curve["round"][-1]
        assert theirs["peak_accuracy"] == max(curve["test_accuracy_percent"])
        for name, values in (("seconds", "elapsed_s"), ("accuracy", "test_accuracy_percent")):
            assert theirs[name] == {at: curve[values][int(at) - 1] for at in theirs[name]}
            assert str(theirs["last_round"]) in theirs[name]


@pytest.mark.nightly
def test_cifar10_small_runs_small_and_its_checks_can_fail(tmp_path, monkeypatch, capsys):
    def small(policy="pause", data_dir=None):
        assert data_dir in ("folder", None)
        config = presets.digits_small("pause" if policy == "pause" else "random")
        return config.replace(num_clients=6, num_selected=2, track_regret=False, learning=SMALL)

    monkeypatch.setattr(presets, "cifar10_small", small)
    monkeypatch.setattr(cifar10_small, "Cnn3", lambda norm: Mlp(hidden=()))
    with pytest.raises(typer.Exit):
        cifar10_small.main(data_dir="folder", seeds=1, rounds=2, out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() in printed
    assert "FAIL pause at 70" in printed
    assert (tmp_path / "figures" / "accuracy.png").is_file()
    assert len(list((tmp_path / "runs").glob("*.csv"))) == 5
