"""The experiment on local epochs: its configs, a small run, and what its page says."""

import collections
import json
import pathlib
import re

import pytest

from experiments.local_epochs import run
from pause_jax.learning import Iid, Linear

HERE = pathlib.Path(run.__file__).parent


@pytest.mark.parametrize("network", run.NETWORKS)
def test_minimum_latency_grows_with_the_epochs(network):
    one, ten = (run.config_of("pause", epochs, network) for epochs in (1, 10))
    assert ten.learning.epochs == 10 * one.learning.epochs == 10
    assert ten.latency.min_latency - one.latency.min_latency == pytest.approx(0.45)


@pytest.mark.nightly
def test_it_runs_small(tmp_path, monkeypatch, capsys):
    small = run.BASE.override(
        {"learning.model": Linear(), "learning.partition": Iid(), "num_rounds": 60}
    )
    monkeypatch.setattr(run, "BASE", small)
    monkeypatch.setattr(run, "ROUNDS", {"early": 1, "late": 2})
    monkeypatch.setattr(run, "NETWORKS", {"computing": run.NETWORKS["computing"]})
    monkeypatch.setattr(run, "POLICIES", ("random",))
    claims = (run.CLAIMS[0], run.CLAIMS[-1])
    monkeypatch.setattr(run, "CLAIMS", claims)
    monkeypatch.setattr(run, "LARGER_LEAD", ())
    run.main(seeds=2, out=tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "output.txt").read_text() == printed
    assert printed.count("\nok ") == 2
    assert printed.count("order at E = 10") == 3
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) == len(claims)
    assert (tmp_path / "figures" / "local_epochs.png").is_file()


def test_its_page_says_what_was_found():
    output = (HERE / "output.txt").read_text(encoding="utf-8")
    page = " ".join((HERE / "README.md").read_text(encoding="utf-8").split())
    tables = re.findall(r"^(\S.*?) +E = 1 .*\n((?:  .*\n)+)", output, re.MULTILINE)
    for setting, rows in tables:
        means = [[each.split("±")[0] for each in row.split()[1:]] for row in rows.splitlines()[:4]]
        cells = [f"{row[0]}, {row[-1]}" for row in means]
        assert all(cell in page for cell in cells), setting
        orders = set(re.findall("order at E = .*: (.*)", rows))
        assert (len(orders) > 1) == setting.startswith("computing")
    assert len(tables) == 5
    verdicts = [json.loads(line) for line in (HERE / "verdicts.jsonl").read_text().splitlines()]
    found = collections.Counter(each["verdict"] for each in verdicts)
    assert found == {"confirmed": 1, "open": 5, "not decidable here": 4}
    assert output.count("confirmed only if differences are nearly normal") == found["open"]
