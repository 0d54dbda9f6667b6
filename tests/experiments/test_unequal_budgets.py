"""The experiment on unequal budgets: its clients, its data, and what its page says."""

import json
import pathlib
import re

import jax
import numpy as np
import pytest

from experiments.unequal_budgets import run, settings
from pause_jax.learning import Digits, Learning, Linear, Natural

HERE = pathlib.Path(run.__file__).parent


@pytest.fixture
def images(monkeypatch):
    """Digits for Fashion-MNIST: the same form, here without a download."""
    monkeypatch.setattr(settings, "SAMPLES", 1200)
    monkeypatch.setattr(settings, "FashionMnist", lambda **given: Digits())


@pytest.mark.parametrize("setting", settings.MEANING)
def test_who_holds_which_labels(images, setting):
    data, budgets = settings.data_of(setting, None), settings.budgets()
    strict = budgets[np.asarray(data.clients)] == settings.TIERS["strict"][0]
    assert np.mean(budgets == 2) == pytest.approx(0.4)
    assert np.mean(budgets == 200) == pytest.approx(0.2)
    np.testing.assert_array_equal(np.bincount(data.clients), [20] * 60)
    labels = np.asarray(data.y_train)
    if setting == "apart":
        assert labels[strict].min() >= labels[~strict].max()
    else:
        assert set(labels[strict]) == set(labels[~strict]) == set(range(10))


@pytest.mark.nightly
def test_it_runs_small(images, tmp_path, monkeypatch, capsys):
    small = Learning(data=Digits(), model=Linear(), optimizer="sgd", max_steps=1)
    learning = small.replace(partition=Natural())
    full = settings.config_of
    in_claims = {name for claim in run.CLAIMS for name in claim[:2]}
    few = {name: policy for name, policy in settings.POLICIES.items() if name in in_claims}
    monkeypatch.setattr(run, "POLICIES", few)
    monkeypatch.setattr(run, "MEANING", {"apart": settings.MEANING["apart"]})
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # other tests' programs
    monkeypatch.setattr(
        run, "config_of", lambda *given, **named: full(*given, **named).replace(learning=learning)
    )
    run.main(seeds=2, rounds=6, out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() == printed
    assert printed.count("\nok ") == 1
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == len(run.CLAIMS) == 7
    assert (tmp_path / "figures" / "unequal_budgets.png").is_file()


def test_its_page_says_what_was_found():
    output = (HERE / "output.txt").read_text(encoding="utf-8")
    page = " ".join((HERE / "README.md").read_text(encoding="utf-8").split())
    verdicts = [json.loads(line) for line in (HERE / "verdicts.jsonl").read_text().splitlines()]
    found = {each["claim"]: (each["verdict"], round(each["found"])) for each in verdicts}
    assert found["mixed, equal rounds: noise_sampling above random"] == ("confirmed", 15)
    assert found["mixed, equal rounds: random above pause"][0] == "not decidable here"
    assert found["mixed, equal rounds: pause, largest above pause"] == ("open", 4)
    assert found["mixed, equal seconds: pause, largest above random"] == ("open", 7)
    assert found["mixed, equal seconds: pause, largest above noise_sampling"] == ("open", -6)
    assert found["mixed, equal rounds: noise_sampling above pause, largest"] == ("open", 9)
    assert {verdict for claim, (verdict, _) in found.items() if "apart" in claim} == {
        "open",
        "not decidable here",
    }
    rows = dict(re.findall(r"^  (\S.*?)  +(\d.*)$", output.split("apart:")[0], re.MULTILINE))
    best, without = (float(rows[n].split("±")[0]) for n in ("tolerant_first", "random, no noise"))
    assert f"{best} %, {without - best:.1f} points below" in page
    assert round(80 / 129, 2) == 0.62
    assert [rows[name].split()[3] for name in ("random", "pause")] == ["40%", "40%"]
