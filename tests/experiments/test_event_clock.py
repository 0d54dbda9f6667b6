"""The experiment on rounds that overlap runs small; what its page says is in its output."""

import pathlib
import re

import pytest

from experiments.event_clock import run, setting
from pause_jax.learning import Digits, Learning, Linear

HERE = pathlib.Path(run.__file__).parent


@pytest.mark.slow
def test_it_runs_small(tmp_path, monkeypatch, capsys):
    learning = Learning(data=Digits(num_train=120), model=Linear(), max_steps=2)
    small = setting.FLEETS["tails"].replace(num_clients=20, num_rounds=60, learning=learning)
    monkeypatch.setitem(setting.FLEETS, "tails", small)
    run.main(seeds=2, rounds=3, only="tails", out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() == printed
    assert printed.count("\nok ") == 4
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == 6


def test_its_page_says_what_was_found():
    output = (HERE / "output.txt").read_text(encoding="utf-8")
    page = (HERE / "README.md").read_text(encoding="utf-8")
    gains = re.findall(r"fedbuff, random above rounds, pause: \+([\d.]+)", output)
    assert [round(float(gain)) for gain in gains] == [11, 12, 14]
    assert "11 to 14 points" in page
    assert re.findall(r"^(\w+) +\w+: fedbuff, pause above", output, re.MULTILINE) == ["open"] * 3
    verdicts = re.findall(r"^(\w+) +\w+: fedbuff, random above fedbuff, f", output, re.MULTILINE)
    assert verdicts == ["confirmed", "refuted", "open"]
    assert "FAIL" not in output
