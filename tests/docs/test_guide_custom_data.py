"""The guides to one's own data, model and fleet: their blocks run in order."""

import re

import pytest

from tests.support.pages import blocks, play

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("guide", "number"), [("own_data_and_model", 6), ("your_fleet", 6)])
def test_it_runs_from_its_first_block_to_its_last(guide, number, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    page = f"docs/guides/{guide}.md"
    assert len(blocks(page)) == number
    play(page, smaller={"base = SimConfig(": "base = SimConfig(track_regret=False, "})
    printed = capsys.readouterr().out.strip().splitlines()
    if guide == "own_data_and_model":
        assert all(re.match(r"(y|y_train|num_clients)\b", line) for line in printed[-4:])
