"""The experiments run, at small size; their full output is kept beside them."""

import json
import pathlib

import pytest
import typer

from experiments.cifar10_small import run as cifar10_small
from experiments.mnist_mlp_30_5 import run
from pause_jax import config_file, presets

HERE = pathlib.Path(run.__file__).parent


def test_mnist_mlp_30_5_runs_small_and_its_checks_can_fail(shared, tmp_path, capsys):
    # Twelve rounds do not reach the authors' seconds: the checks must say so.
    with pytest.raises(typer.Exit):
        run.main(data_dir=str(shared / "data" / "tfds"), seeds=3, rounds=12, out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() == printed
    assert printed.count("FAIL ") >= 6
    assert "FAIL pause: the authors' run is a draw from ours" in printed
    assert (tmp_path / "figures" / "accuracy_vs_seconds.png").is_file()


def test_the_kept_output_of_mnist_mlp_30_5_passed_every_check():
    text = (HERE / "output.txt").read_text()
    assert text.startswith("20 seeds, 300 rounds\n")
    assert text.count("\nok ") == 9
    assert "FAIL" not in text


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


def test_cifar10_small_runs_small_and_its_checks_can_fail(tmp_path, monkeypatch, capsys):
    def small(policy, data_dir=None):
        return presets.digits_small(policy).replace(eval_every=10)

    monkeypatch.setattr(presets, "cifar10_small", small)
    with pytest.raises(typer.Exit):
        cifar10_small.main(policy="random", rounds=2, out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() == printed
    assert "FAIL best accuracy" in printed
    assert "ok   the model stays finite" in printed
    assert config_file.load(tmp_path / "config.toml") == small("random").replace(num_rounds=2)
    assert (tmp_path / "figures" / "accuracy_vs_seconds.png").is_file()


def test_the_kept_output_of_cifar10_small_is_of_its_preset_and_passed_every_check():
    folder = pathlib.Path(cifar10_small.__file__).parent
    assert config_file.load(folder / "config.toml") == presets.cifar10_small("pause")
    text = (folder / "output.txt").read_text()
    assert text.startswith("cifar10_small, pause, 300 rounds")
    assert text.count("\nok ") == 4
    assert "FAIL" not in text
