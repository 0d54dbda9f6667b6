"""The experiment on few trained parameters: its data, its sizes, and what its page says."""

import numpy as np
import pytest

from experiments.few_parameters import run, settings
from pause_jax.learning import Digits
from pause_jax.privacy import L1Laplace


@pytest.fixture
def images(monkeypatch):
    """Use Digits, which needs no download, in place of Fashion-MNIST."""
    for name, value in {"SAMPLES": 600, "PUBLIC": 100, "HIDDEN": 12}.items():
        monkeypatch.setattr(settings, name, value)
    monkeypatch.setattr(settings, "FashionMnist", lambda **given: Digits())


@pytest.mark.parametrize(("setting", "labels"), [("same", 10), ("new", 5)])
def test_server_and_clients_share_no_samples(images, setting, labels):
    public, held = settings.data_of(setting, None)
    assert set(np.asarray(public.y_train)) == set(range(labels))
    assert set(np.asarray(held.y_train)) == set(range(10))
    np.testing.assert_array_equal(np.bincount(held.clients), [6] * 100)
    rows = {row.tobytes() for row in np.asarray(held.x_train)}
    assert len(rows) == 600
    assert not rows & {row.tobytes() for row in np.asarray(public.x_train)}


@pytest.mark.slow
def test_it_runs_small(images, tmp_path, monkeypatch, capsys):
    parts = {name: settings.PARTS[name] for name in ("all", "head")}
    monkeypatch.setattr(settings, "PARTS", parts)
    monkeypatch.setattr(settings, "HIDDEN_ONLY", {})
    monkeypatch.setattr(settings, "MEANING", {"new": settings.MEANING["new"]})
    for module in (settings, run):
        monkeypatch.setattr(module, "MECHANISMS", (L1Laplace,))
    small = [each for each in run.CLAIMS if {each[2].mechanism, each[3].mechanism} == {"l1_vector"}]
    monkeypatch.setattr(run, "CLAIMS", small)
    run.main(seeds=2, rounds=10, out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() == printed
    assert printed.count("\nok ") == 1
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == len(small) == 1
    assert (tmp_path / "figures" / "few_parameters.png").is_file()
    # Weights of 64-12-10: 64 x 12 + 12 + 12 x 10 + 10.
    assert "d = 910," in printed
    assert "d = 130," in printed
