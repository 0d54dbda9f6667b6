"""Execute the notebooks and store them with their outputs, to show pictures in any viewer.

    python -m tools.notebooks            # all notebooks: five minutes of processor time
    python -m tools.notebooks NAME ...   # the named notebooks

The stored files omit everything that differs between executions: times, versions, random
identifiers and compilation messages.
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
# Random identifiers of the sections in xarray's HTML.
IDENTIFIER = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def execute(path: Path) -> None:
    """Execute a notebook in an empty folder, and store it with its outputs.

    Raises:
      CellExecutionError: if a cell fails; the file then remains unchanged.
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
    """Replace the random identifiers in a notebook's text by numbers, in order of appearance."""
    order = {found: place for place, found in enumerate(dict.fromkeys(IDENTIFIER.findall(text)))}
    return IDENTIFIER.sub(lambda found: f"id-{order[found.group()]}", text)


if __name__ == "__main__":
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not sys.argv[1:] or notebook.stem in sys.argv[1:]:
            print(notebook.name, flush=True)
            execute(notebook)
