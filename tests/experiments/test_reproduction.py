"""The page of every figure and table: complete, up to date, and backed by what was played."""

import pathlib

import numpy as np
import pytest
from scipy import stats

from experiments.common.curves import play_all, runs_of
from experiments.common.learning_figure import Curves
from experiments.pause_figs_6_7 import run as pause_figs_6_7
from tools import reproduction

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("folder", FOLDERS)
def test_experiment_of_a_row_has_a_program_and_a_page(folder):
    here = ROOT / "experiments" / folder
    assert (here / "run.py").is_file()
    assert (here / "README.md").is_file()


@pytest.mark.parametrize("row", [row for row in ROWS if row.folder and not row.verdict], ids=str)
def test_a_row_that_is_played_has_claims_of_its_own(row):
    path = ROOT / "experiments" / row.folder / "verdicts.jsonl"
    if path.is_file():
        assert reproduction.verdict_of(row)


def test_no_verdict_is_written_by_hand_but_open():
    assert {row.verdict.split(",")[0] for row in ROWS} == {"", "open"}


def test_of_fig_6_intervals_are_scipys_for_nine_claims_together():
    """From the kept curves: PAUSE is above random, which ten seeds had left open together."""
    setting = pause_figs_6_7.setting(None, pause_figs_6_7.ROUNDS)
    only = {label: setting.configs[label] for label in ("PAUSE", "random")}
    kept = Curves(play_all(runs_of(only, 20), pathlib.Path(pause_figs_6_7.__file__).parent))
    ours, theirs = (100 * np.asarray(kept.best(label)) for label in only)
    together = stats.ttest_rel(ours, theirs).confidence_interval(1 - 0.05 / 9)
    half = (together.high - together.low) / 2
    evidence = f"{(ours - theirs).mean():+.3g} +- {half:.2g} points (20 seeds, 95 % for 9 claims"
    assert evidence in (ROOT / "experiments" / "pause_figs_6_7" / "output.txt").read_text()
    of_ten = stats.ttest_rel(ours[:10], theirs[:10])
    together, alone = (of_ten.confidence_interval(1 - 0.05 / number) for number in (9, 1))
    assert together.low < 0 < alone.low
