"""The code of the pages that users read: the README, the guides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str = "python") -> list[str]:
    """The code blocks of a page, by its path from the root of the project."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def block(page: str, words: str) -> str:
    """The one Python block of a page that has these words."""
    (found,) = [each for each in blocks(page) if words in each]
    return found


def play(page: str, only: str = "", smaller: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the Python blocks of a page in their order, as they stand there, in one namespace.

    Args:
      page: its path.
      only: words of the blocks to run; all without.
      smaller: words -> what stands for them here, so that it takes seconds; each must be there.

    Returns:
      The names that they left.
    """
    chosen = [each for each in blocks(page) if only in each]
    assert chosen, f"{page} has no such block"
    names: dict[str, Any] = {"__name__": "page"}
    for place, text in enumerate(chosen, 1):
        for words, fewer in (smaller or {}).items():
            assert any(words in each for each in chosen), words
            text = text.replace(words, fewer)
        exec(compile(text, f"{page}, block {place}", "exec"), names)
    return names
