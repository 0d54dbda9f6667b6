"""The notebooks run, at small size, and are stored with what they show."""

import contextlib
import importlib.util
import io
import pathlib
import re
import tomllib
import types
import uuid
from importlib import metadata
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from packaging.requirements import Requirement
from traitlets.config import Config

from pause_jax.config import presets
from pause_jax.learning import Digits, Linear
from tools import notebooks

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def run(cells: list[str]) -> int:
    """Run code cells as a kernel does, in this process, and draw their figures.

    Returns:
      How many figures they made.

    Raises:
      Exception: what a cell raises, and a warning.
      AssertionError: if something is on standard error, such as a display that fails.
    """
    plt.switch_backend("agg")
    shell = InteractiveShell(
        user_module=types.ModuleType("notebook"),
        config=Config({"HistoryManager": {"enabled": False}}),
    )
    pictures, said = 0, io.StringIO()
    try:
        for cell in cells:
            with contextlib.redirect_stderr(said):
                shell.run_cell(cell).raise_error()
            for number in plt.get_fignums():
                plt.figure(number).draw_without_rendering()
                plt.close(number)
                pictures += 1
    finally:
        plt.close("all")
        shell.restore_sys_module_state()
    assert said.getvalue() == ""
    return pictures


def small(notebook: nbformat.NotebookNode) -> list[str]:
    """The code cells of a notebook with small parameters."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (parameters,) = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert re.fullmatch(r"ROUNDS = \d+\nSEEDS = \d+", parameters.source)
    parameters.source = "ROUNDS = 10\nSEEDS = 2"
    sources = "\0".join(cell.source for cell in code)
    for large, smaller in SMALLER.items():
        sources = sources.replace(large, smaller)
    return sources.split("\0")


# What a notebook runs, and what is quicker to compile and to run.
SMALLER = {
    "Digits()": "Digits(num_train=300)",
    "model=Linear())": "model=Linear(), optimizer='sgd', max_steps=1)",
    "--budget 24": "--budget 3",
    "differing = [1, 2, 4, 8, 16]": "differing = [1, 16]",
    "alphas = [0.0, 10.0, 100.0, 1000.0]": "alphas = [0.0, 10.0]",
    "gammas = [0.0, 1.0, 10.0, 100.0]": "gammas = [0.0, 1.0]",
    # Only here the genie's choice is shown.
    'digits_small(policy="pause").replace(': 'digits_small("pause").replace(track_regret=True, ',
    # All policies are made, but not all are compiled.
    'policies["all, no': 'del policies["random"], policies["fastest"]\npolicies["all, no',
    "curves = regret.measure(": 'del policies["random"]\ncurves = regret.measure(',
    'configs["FedAvg, no privacy"]': (
        'for label in ("random", "clustered sampling", "fastest"):\n'
        "    del configs[label], policies[label]\n"
        'configs["FedAvg, no privacy"]'
    ),
    '"num_clients": 60': '"num_clients": 20',
    "=named(name)) for name in names}": "=p) for name, p in [(n, named(n)) for n in names][::2]}",
    "    configs |= {": '    del private["priv_unit_g"]\n    configs |= {',
    "policy in searches.items()}": 'policy in searches.items() if "8 chains" not in name}',
    "fedbuff.replace(policy=named(name))": (
        "fedbuff.replace(policy=named(name))\n"
        'del configs["rounds, pause"], configs["fedbuff, pause"]'
    ),
    '("fedbuff, random", "fedbuff, pause")': '("fedbuff, random",)',
    "few = SimConfig(": "few = SimConfig(track_regret=False, ",
    "totals = [30.0": 'del parts["all weights"], parts["head"]\ntotals = [30.0',
}


def test_what_is_made_smaller_is_in_a_notebook():
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells]
    whole = "\0".join(cell.source for cell in cells if cell.cell_type == "code")
    assert [large for large in SMALLER if large not in whole] == []


def small_preset(policy, data, model, sensitivity, total_epsilon, *, whole=presets._small):
    config = whole(policy, Digits(num_train=300), Linear(), sensitivity, total_epsilon)
    small = {"learning.optimizer": "sgd", "learning.max_steps": 1, "track_regret": False}
    return config.override(small)


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_at_small_size(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(presets, "_small", small_preset)
    assert run(small(nbformat.read(path, as_version=4))) >= 3


FIGURE = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n"


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        ("1 / 0", ZeroDivisionError),
        ("%no_such_magic", UsageError),
        ("import warnings\nwarnings.warn('a word')", UserWarning),
        ("class Bad:\n    def _repr_html_(self):\n        return 1 / 0\nBad()", AssertionError),
        (f"{FIGURE}ax.set_title('$\\\\frac{{$')", ValueError),
    ],
)
def test_a_cell_that_fails_is_seen(cell, error):
    with pytest.raises(error):
        run(["x = 1", cell])


def test_figures_are_counted_and_magics_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run([f"{FIGURE}plt.subplots();", "%run -m pause_jax show digits_small", "1"]) == 2
    assert "num_clients = 30" in capsys.readouterr().out
    assert plt.get_fignums() == []


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
        if "warning" in texts(output).lower():
            found.append(f"a warning: {texts(output)[:80]}")
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
        (nbformat.v4.new_output("stream", text="Warning: a word"), "a warning"),
        (nbformat.v4.new_output("stream", text="saved in /tmp/x"), "a path"),
    ],
)
def test_a_fault_of_a_stored_notebook_is_seen(output, words):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(execution_count=1)])
    notebook.cells[0].outputs = [output]
    found = faults(notebook)
    assert "pictures are missing" in found
    assert any(words in fault for fault in found)


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
    assert wanted.extras - {"tune", "accounting"} == {"plot", plugin} - {None}
    assert wanted.url.endswith(".whl")
    offered = set(metadata.metadata("jax").get_all("Provides-Extra"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert wanted.extras <= set(project["optional-dependencies"])
    for each in wanted.extras & {plugin}:
        assert project["optional-dependencies"][each] == [f"jax[{each}]"]
        assert each in offered


def test_random_identifiers_are_numbered():
    first, second, third = (str(uuid.UUID(int=n, version=4)) for n in (3, 2**70, 2**90))
    assert notebooks.without_chance(f"{second} {first} {second}") == "id-0 id-1 id-0"
    assert notebooks.without_chance(f"a {second} {first}") == notebooks.without_chance(
        f"a {first} {third}"
    )
