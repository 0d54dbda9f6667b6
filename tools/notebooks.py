"""Executes the notebooks and stores them with their outputs, so that they show pictures wherever
they are opened.

    python -m tools.notebooks            # all of them: five minutes of processor time
    python -m tools.notebooks NAME ...   # some

What differs from one execution to the next is left out: times, versions, random identifiers, what
says that a program is compiled.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

from pause_jax.base.compilation import COMPILING

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
# xarray's HTML names its sections by them.
IDENTIFIER = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def execute(path: Path) -> None:
    """Execute a notebook from its first cell to its last, in an empty folder, and store it.

    Raises:
      CellExecutionError: if a cell fails; the file is then as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata = {"tags": cell.metadata.tags} if "tags" in cell.metadata else {}
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook,
            timeout=600,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": folder}},
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [x for x in cell.outputs if x.get("text") != COMPILING + "\n"]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.validate(notebook)
    path.write_text(without_chance(nbformat.writes(notebook)) + "\n", "utf-8")


def without_chance(text: str) -> str:
    """A notebook's text with its random identifiers numbered in the order in which they come."""
    order = {found: place for place, found in enumerate(dict.fromkeys(IDENTIFIER.findall(text)))}
    return IDENTIFIER.sub(lambda found: f"id-{order[found.group()]}", text)


if __name__ == "__main__":
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not sys.argv[1:] or notebook.stem in sys.argv[1:]:
            print(notebook.name, flush=True)
            execute(notebook)
