"""The page of every figure and table: complete, up to date, and backed by what was played."""

import json
import pathlib
import subprocess
import sys

import pytest
import reproduction

ROOT = pathlib.Path(reproduction.__file__).resolve().parents[1]
ROWS = (*reproduction.PAUSE, *reproduction.BSFL)
FOLDERS = sorted({row.folder for row in ROWS if row.folder})


def names(rows) -> set[str]:
    """Their names without the side of a panel."""
    return {row.name.removesuffix(" left").removesuffix(" right") for row in rows}


def test_every_figure_and_table_of_both_papers_has_a_row():
    figures = {f"Fig. {number}" for number in range(1, 10)}
    assert names(reproduction.PAUSE) >= figures | {"Table I"}
    more = {f"Fig. {number}" for number in range(1, 13)}
    assert names(reproduction.BSFL) >= more | {"Table 1", "Table 2", "Table 3"}


def test_the_page_is_what_the_experiments_say():
    assert reproduction.PAGE.read_text() == reproduction.page(), "run make reproduction"
    check = subprocess.run([sys.executable, reproduction.__file__, "--check"], check=False)
    assert check.returncode == 0


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_experiment_that_was_played_has_its_output_and_picture(folder):
    here = ROOT / "experiments" / folder
    assert (here / "run.py").is_file()
    assert (here / "README.md").is_file()
    if (here / "output.txt").is_file():
        assert list((here / "figures").glob("*.png")), "no picture"


@pytest.mark.parametrize("row", [row for row in ROWS if row.folder and not row.verdict], ids=str)
def test_a_row_that_is_played_has_claims_of_its_own(row):
    path = ROOT / "experiments" / row.folder / "verdicts.jsonl"
    if path.is_file():
        assert reproduction.verdict_of(row)


def test_no_claim_is_decided_on_one_seed():
    for folder in FOLDERS:
        path = ROOT / "experiments" / folder / "verdicts.jsonl"
        for line in path.read_text().splitlines() if path.is_file() else ():
            judged = json.loads(line)
            if "one seed" in judged["evidence"]:
                assert judged["verdict"] == "open", judged
