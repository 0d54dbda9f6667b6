"""Damaged command lines: nothing runs, and each is taken or refused in one line."""

import importlib
import pathlib

import pytest
from typer.testing import CliRunner

from pause_jax.cli import program
from pause_jax.privacy import audit
from tests.support import public_files
from tests.support.hostile import mutants, outcome

pytestmark = pytest.mark.slow

LINES = (
    "compare --policies pause,random:gaussian --preset digits_small --rounds 5 --seeds 2 --seed 1 "
    "--target 0.5 --name mine --set reward.gamma=2 --no-figures",
    "run a.toml digits_small --rounds 3 --seeds 2 --set policy=random --set learning=none --resume",
    "sweep a.toml --vary reward.gamma=0,1,5 --vary num_selected=2,3 --max-batch 4 --store kept",
    "tune a.toml --vary reward.gamma=1..20 --vary reward.alpha=log:0.1..2 --objective regret "
    "--budget 8 --seeds 2 --width 4",
    "show digits_small --policy random --set privacy.budget.total_epsilon=3",
    "audit --mechanism gaussian --epsilon 0.5 --claim update --dimension 8 --samples 1000 --set "
    "delta=0.1",
    "fit fleet.csv --out model.toml --drop-bad-lines",
    "import leaf users.json --columns x=image,y=label --clients 2 --seed 3 --out out",
    "report folder --target 0.5 --against random",
)


class AcceptedError(Exception):
    """Arguments reached the work."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files that the command lines name; no work is done."""

    def accept(*_, **__):
        raise AcceptedError

    monkeypatch.setattr(importlib.import_module("pause_jax.cli.compare"), "execute", accept)
    monkeypatch.setattr(importlib.import_module("pause_jax.tuning"), "tune", accept)
    monkeypatch.setattr(audit, "audit", accept)
    folder = tmp_path / "a" / "b"  # a damaged name may be ../x
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    pathlib.Path("a.toml").write_text('learning = "none"\nnum_rounds = 30\n')
    pathlib.Path("fleet.csv").write_text("client,seconds\n0,1\n0,2\n1,3\n1,4\n")
    public_files.leaf(pathlib.Path("users.json"), {k: {"x": [[0.5]], "y": [1]} for k in "abc"})


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[0])
def test_damaged_command_line_is_accepted_or_refused_in_one_line(here, line):
    app = program()
    for damaged in mutants(line.encode(), 22, seed=7):
        words = damaged.decode(errors="replace").replace("\0", "").split(" ")

        def run(words=words):
            done = CliRunner().invoke(app, words)
            if isinstance(done.exception, SystemExit):
                assert done.exit_code in (0, 2), done.output
            elif done.exception is not None and not isinstance(done.exception, AcceptedError):
                raise done.exception

        outcome(run, "", words)
