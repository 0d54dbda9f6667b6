"""The notebooks run, at small size, and are stored with what they show."""

import importlib.util
import pathlib
import re
import tomllib
import uuid
from importlib import metadata
from typing import Any

import nbclient
import nbformat
import pytest
from packaging.requirements import Requirement

import notebooks

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


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


def texts(output: dict[str, Any]) -> str:
    """All of an output that is text."""
    data = {kind: text for kind, text in output.get("data", {}).items() if kind != "image/png"}
    return "\n".join(map(str, (output.get("text", ""), *data.values())))


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """What is wrong with the outputs of a stored notebook."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    found = []
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("not executed from its first cell to its last")
    if sum("image/png" in output.get("data", {}) for output in outputs) < 3:
        found.append("pictures are missing")
    for output in outputs:
        if output.output_type == "error" or output.get("name") == "stderr":
            found.append(f"an error or a warning: {output.get('ename', '')}{texts(output)[:80]}")
        if re.search(r"/(home|root|tmp|work|usr|opt|Users|var)/|file:", texts(output)):
            found.append(f"a path of the machine: {texts(output)[:80]}")
    return found


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def stored(request):
    return nbformat.read(request.param, as_version=4)


def test_a_notebook_is_stored_with_its_outputs(stored):
    assert faults(stored) == []


def test_its_metadata_are_those_of_any_machine(stored):
    assert set(stored.metadata) == {"kernelspec", "language_info"}
    assert all(set(cell.metadata) <= {"tags"} for cell in stored.cells)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (nbformat.v4.new_output("error", ename="E", evalue="", traceback=[]), "an error"),
        (nbformat.v4.new_output("stream", name="stderr", text="UserWarning"), "a warning"),
        (nbformat.v4.new_output("stream", text="saved in /tmp/x"), "a path"),
        (None, "pictures are missing"),
    ],
)
def test_a_fault_of_a_stored_notebook_is_seen(stored, output, words):
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    if output is None:
        for cell in code:
            cell.outputs = []
    else:
        code[0].outputs.append(output)
    assert any(words in fault for fault in faults(stored))


def test_a_notebook_installs_what_it_is_told_and_names_no_address(stored):
    source = "\n".join(cell.source for cell in stored.cells)
    assert f'PACKAGE = "pause_jax-{metadata.version("pause_jax")}-py3-none-any.whl"' in source
    assert "github" not in source


@pytest.mark.parametrize("plugin", ["cuda12", "cuda13", None])
def test_a_jax_for_a_gpu_is_kept(stored, plugin, monkeypatch):
    cell = next(cell.source for cell in stored.cells if "PACKAGE" in cell.source)
    found = {"jax": True, f"jax_{plugin}_plugin": True}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found.get(name))
    names: dict[str, Any] = {}
    exec(re.sub(r"%pip install -q (.*)", r"installed = f\1", cell), names)
    wanted = Requirement(names["installed"])
    assert wanted.extras == {"plot", plugin} - {None}
    assert wanted.url.endswith(".whl")
    offered = set(metadata.metadata("jax").get_all("Provides-Extra"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for each in wanted.extras - {"plot"}:
        assert project["optional-dependencies"][each] == [f"jax[{each}]"]
        assert each in offered


def test_random_identifiers_are_numbered():
    first, second, third = (str(uuid.UUID(int=n, version=4)) for n in (3, 2**70, 2**90))
    assert notebooks.without_chance(f"{second} {first} {second}") == "id-0 id-1 id-0"
    assert notebooks.without_chance(f"a {second} {first}") == notebooks.without_chance(
        f"a {first} {third}"
    )
