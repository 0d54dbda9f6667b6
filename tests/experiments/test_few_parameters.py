"""The experiment on few trained parameters: its data, its sizes, and what its page says."""

import json
import pathlib
import re

import numpy as np
import pytest

from experiments.few_parameters import run, settings
from pause_jax.learning import Digits
from pause_jax.privacy import L1Laplace

HERE = pathlib.Path(run.__file__).parent
OUTPUT = (HERE / "output.txt").read_text(encoding="utf-8")


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


@pytest.mark.nightly
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


def test_kept_output_has_the_sizes_of_a_784_32_10_network():
    kernels = ((784, 32), (32, 10))
    low_rank = sum(height + width for height, width in kernels)
    sizes = {
        "all": 784 * 32 + 32 + 32 * 10 + 10,
        "head": 32 * 10 + 10,
        **{f"LoRA {rank}": low_rank * rank for rank in (1, 4, 10)},
        "LoRA 16, hidden": (784 + 32) * 16,
    }
    printed = re.findall(r"^  (\S.*?) +d = ([\d,]+), no", OUTPUT, re.MULTILINE)
    assert [(name, int(d.replace(",", ""))) for name, d in printed] == [*sizes.items()] * 2


def test_its_page_says_what_was_found():
    page = (HERE / "README.md").read_text(encoding="utf-8")
    lines = (HERE / "verdicts.jsonl").read_text(encoding="utf-8").splitlines()
    verdicts = [json.loads(line) for line in lines]
    claimed = [f"{setting}: {claim}" for setting, claim, *_ in run.CLAIMS]
    assert [each["claim"] for each in verdicts] == claimed
    assert [(each["verdict"], round(each["found"])) for each in verdicts] == [
        ("not decidable here", 0), ("refuted", -13), ("open", -12), ("confirmed", 13), ("open", 1),
        ("confirmed", 3), ("confirmed", 8), ("confirmed", 1),
    ]  # fmt: skip
    new = OUTPUT.split("\nnew:")[1]
    free = dict(re.findall(r"^  (\S.*?) +d = .*no noise +([\d.]+)±", new, re.MULTILINE))
    noisy = re.findall(r"^  (\S.*?)  +(\d.*)$", new.split("priv_unit_g")[1], re.MULTILINE)
    for part, row in noisy:
        cells = [*re.findall(r"([\d.]+)±", row)[:5], free[part]]
        assert re.search(rf"^\| {part} \| [\d,]+ \| {re.escape(' | '.join(cells))} \|$", page, re.M)
    assert [part for part, _ in noisy] == list(settings.PARTS)
