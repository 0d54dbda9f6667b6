"""The experiment on what noise costs: it runs small, and its kept tables are what is claimed."""

import json
import pathlib
import re

import numpy as np
import pytest
import typer

from experiments.noise_cost import run, settings
from pause_jax.policies import Random
from pause_jax.privacy import PerCoordinateLaplace

pytestmark = pytest.mark.slow

HERE = pathlib.Path(run.__file__).parent
RULES = json.loads((HERE / "expected.json").read_text())
SMALL = ("per_coordinate", "l1_vector", "priv_unit_g")
TITLES = ["digits, 30/5", "digits, 300/15", "mnist, 30/5", "mnist, 300/15"]


def parts(text):
    """The parts of an output: title, accuracy without noise, {unit: {mechanism: means}}."""
    for part in re.split(r"\n(?=\w+, \d+/\d+\n)", text)[1:]:
        title = part.splitlines()[0]
        (plain,) = map(float, re.findall(r"without noise ([\d.]+)", part))
        tables = {}
        for block in part.split("  equal epsilon of ")[1:]:
            unit = "update" if block.startswith("the whole update") else "coordinate"
            rows = re.findall(r"^  (\w+) +([\d.]+±.*|-.*)$", block, re.M)
            tables[unit] = {n: [float(x) for x in re.findall(r"([\d.]+)±", r)] for n, r in rows}
        yield title, plain, tables


def test_the_kept_tables_hold_what_is_claimed():
    found = list(parts((HERE / "output.txt").read_text()))
    assert [title for title, _, _ in found] == TITLES
    for title, plain, tables in found:
        for rule in RULES:
            place = settings.EPSILONS.index(rule["epsilon"])
            value = tables[rule["unit"]][rule["mechanism"]][place]
            value /= plain if rule["of_no_noise"] else 1
            claim = f"{title}: {rule['claim']}, {value}"
            assert rule.get("at_least", -np.inf) <= value <= rule.get("at_most", np.inf), claim


@pytest.mark.nightly
def test_it_runs_small_and_its_checks_can_fail(tmp_path, monkeypatch, capsys):
    few = {p: m for p, m in settings.mechanisms(2778).items() if p.mechanism in SMALL}
    monkeypatch.setattr(settings, "mechanisms", lambda d: few)
    of_paper = settings.setting  # with PAUSE, whose search takes long to compile
    monkeypatch.setattr(run, "setting", lambda *given: of_paper(*given).replace(policy=Random()))
    with pytest.raises(typer.Exit):
        run.main(datasets="digits", networks="30/5", seeds=1, rounds=2, out=tmp_path)
    printed = capsys.readouterr().out
    assert "FAIL digits, 30/5: priv_unit_g at 2,000 an update keeps most" in printed
    assert (tmp_path / "output.txt").read_text() == printed
    assert (tmp_path / "figures" / "noise_cost.png").is_file()


def test_every_mechanism_has_every_epsilon_in_both_units():
    points = settings.mechanisms(1000)
    names = {point.mechanism for point in points}
    assert len(names) == 6
    for name in names:
        epsilons = {point.epsilon for point in points if point.mechanism == name}
        assert set(settings.EPSILONS) <= epsilons
    coordinate = {p.epsilon for p in points if p.mechanism == PerCoordinateLaplace.name}
    assert {e / 1000 for e in settings.EPSILONS} <= coordinate
