"""The experiment on the worst tenth: its scores, a small run, and what its page says."""

import collections
import json
import pathlib
import re

import numpy as np
import pytest
import xarray as xr

from experiments.gauntlet import run as gauntlet
from experiments.left_behind import run

HERE = pathlib.Path(run.__file__).parent


def test_scores_are_over_clients_at_the_late_time():
    dims = ("config", "seed", "eval_round", "client")
    accuracy = np.stack([np.linspace(0.1, 1, 10), np.linspace(0, 0.9, 10)])[None, None]
    clock = (dims[:3], np.array([[[1.0, 3.0]]]))
    values = {"client_accuracy": (dims, accuracy), "eval_clock": clock}
    result = xr.Dataset(values, {"eval_round": [1, 2]})
    found = run.at_clients(result, {"early": 0.5, "late": 2.0})
    assert found["worst tenth"].item() == pytest.approx(10)
    assert found["worst third"].item() == pytest.approx(20)
    assert found["mean"].item() == pytest.approx(55)
    assert found["spread"].item() == pytest.approx(100 * np.linspace(0.1, 1, 10).std())


@pytest.mark.nightly
def test_it_runs_small_and_what_is_kept_is_not_run_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gauntlet, "ROUNDS", {"early": 2, "late": 40})
    monkeypatch.setattr("jax.clear_caches", lambda: None)  # other tests' programs
    arguments = {"seeds": 3, "only": "labels", "choose": "random,fastest", "out": tmp_path}
    monkeypatch.setattr(run, "CLAIMS", [("labels", "mean", "random", "fastest")])
    run.main(**arguments)
    first = capsys.readouterr().out
    assert "among 3 cells" in first
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "figures" / "left_behind.png").is_file()
    monkeypatch.setattr(gauntlet, "sweep", lambda *_, **__: pytest.fail("a score is not kept"))
    run.main(**arguments)
    assert capsys.readouterr().out == first == (tmp_path / "output.txt").read_text()


def test_its_page_says_what_was_found():
    output = (HERE / "output.txt").read_text(encoding="utf-8")
    page = (HERE / "README.md").read_text(encoding="utf-8")
    fleets = re.split("^(?:labels|shy): the", output, flags=re.MULTILINE)[1:]
    means = [dict(re.findall(r"^(\w+) +(\d.*)$", text, re.MULTILINE)) for text in fleets]
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    for name, *cells in rows:
        kept = [each.split("±")[0] for of in means for each in of[name].split()[1:3]]
        assert cells == kept, name
    assert len(rows) == 8
    at_zero = [sum(row.startswith("0.0±") for row in of.values()) for of in means]
    assert at_zero == [30, 45]
    verdicts = [json.loads(line) for line in (HERE / "verdicts.jsonl").read_text().splitlines()]
    found = collections.Counter(each["verdict"] for each in verdicts)
    assert found == {"confirmed": 3, "open": 4, "not decidable here": 1}
    assert output.count("confirmed only if differences are nearly normal") == found["open"]
