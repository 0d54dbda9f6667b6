"""The guides' blocks run as they stand there, one after the other."""

import pathlib
import re
from typing import Any

import pytest

GUIDES = sorted((pathlib.Path(__file__).parents[1] / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks_of(guide: pathlib.Path) -> list[str]:
    return BLOCK.findall(guide.read_text(encoding="utf-8"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_runs_from_its_first_block_to_its_last(guide, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": f"guide_{guide.stem}"}
    for place, block in enumerate(blocks_of(guide), 1):
        exec(compile(block, f"{guide.name}, block {place}", "exec"), names)


def test_there_are_blocks_to_run():
    assert sum(len(blocks_of(guide)) for guide in GUIDES) >= 6
