"""The guides to one's own data, model and fleet: their blocks run as they stand there, in order."""

import pathlib
import re
from typing import Any

import pytest

GUIDES = pathlib.Path(__file__).parents[1] / "docs" / "guides"


@pytest.mark.parametrize(("guide", "number"), [("own_data_and_model", 6), ("your_fleet", 5)])
def test_it_runs_from_its_first_block_to_its_last(guide, number, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == number
    names: dict[str, Any] = {"__name__": "guide"}
    for place, block in enumerate(blocks, 1):
        exec(compile(block, f"{guide}.md, block {place}", "exec"), names)
    printed = capsys.readouterr().out.strip().splitlines()
    if guide == "own_data_and_model":
        assert all(re.match(r"(y_train|num_clients)\b", line) for line in printed[-4:])
