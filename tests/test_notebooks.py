"""The notebooks run, at small size."""

import pathlib

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS] == [
        "01_quickstart.ipynb",
        "02_write_a_policy.ipynb",
    ]


# The kernel's own libraries warn about their event loops; the notebook's code is what is tested.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_at_small_size(path):
    notebook = nbformat.read(path, as_version=4)
    parameters = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert len(parameters) == 1
    parameters[0].source = "ROUNDS = 10\nSEEDS = 2"
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    images = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(images) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_and_with_a_badge(path):
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    assert "colab-badge.svg" in notebook.cells[0].source
