"""The guide to one's own data and model: its blocks run as they stand there, in their order."""

import pathlib
import re
from typing import Any

GUIDE = pathlib.Path(__file__).parents[1] / "docs" / "guides" / "own_data_and_model.md"


def test_it_runs_from_its_first_block_to_its_last(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {"__name__": "guide"}
    for place, block in enumerate(blocks, 1):
        exec(compile(block, f"{GUIDE.name}, block {place}", "exec"), names)
    refused = capsys.readouterr().out.strip().splitlines()[-4:]
    assert all(re.match(r"(y_train|num_clients)\b", line) for line in refused)
