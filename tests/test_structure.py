"""Structure of the package: direction of imports, cycles, and limits of size."""

import ast
import graphlib
import importlib
import pathlib
import re
import subprocess
import sys

import grimp
import pytest

from pause_jax.base.struct import Config
from pause_jax.config.presets import PRESETS
from tools.layers import PACKAGE, ROOT, folders, layers, modules

MAX_LAYERS = 8
MAX_FUNCTION_LINES = 80  # without the docstring
MAX_PUBLIC_NAMES = 120  # besides config classes and presets
MAX_PACKAGE_LINES = 28_000
# Test folders without a folder of the same name in the package.
OTHER_TESTS = {"data", "docs", "experiments", "flower", "reference", "support"}


def test_imports_keep_the_contracts_of_pyproject():
    """In a process of its own: import-linter disables the loggers of all other modules."""
    command = [pathlib.Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert len(layers()) <= MAX_LAYERS


def test_no_program_calls_lapack():
    """See ``inverse_and_log_det``: on two cores, batches in LAPACK can wait for each other."""
    for path in PACKAGE.rglob("*.py"):
        calls = set(re.findall(r"j(?:np|sp|ax)[\w.]*\.linalg\.(\w+)", path.read_text("utf-8")))
        assert calls <= {"norm"}, path


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("pause_jax", cache_dir=None)


def test_no_module_imports_itself_through_others(graph):
    imported = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert ("pause_jax.run.simulate", "pause_jax.config") in {
        (importer, each) for importer, found in imported.items() for each in found
    }
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError


def test_no_folder_imports_the_whole_package(graph):
    importers = graph.find_modules_that_directly_import("pause_jax")
    assert importers <= {"pause_jax.__main__"}


def test_a_function_has_at_most_80_lines():
    lengths = {
        f"{module}.{node.name}": body_lines(node)
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(lengths) > 1000
    assert {name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES} == {}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function with its signature and without its docstring."""
    length = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return length
    docstring = function.body[0]
    return length - ((docstring.end_lineno or 0) - docstring.lineno + 1)


def test_few_public_names_besides_config_classes_and_presets():
    found: dict[str, object] = {}
    for module in modules():
        if module.startswith("pause_jax.deploy.flower") or module.endswith("__main__"):
            continue
        source = importlib.import_module(module)
        found |= {name: getattr(source, name) for name in getattr(source, "__all__", ())}
    configs = {
        name for name, each in found.items() if isinstance(each, type) and issubclass(each, Config)
    }
    assert len(configs) > 100
    assert len(found.keys() - configs - set(PRESETS)) <= MAX_PUBLIC_NAMES


def test_the_package_has_at_most_28_000_lines():
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py"))
    assert lines <= MAX_PACKAGE_LINES


def test_test_folders_are_named_after_folders_of_the_package():
    found = {path.name for path in (ROOT / "tests").iterdir() if (path / "__init__.py").exists()}
    assert found - OTHER_TESTS <= set(folders())
    assert len(found) > 10


def test_the_page_of_the_architecture_lists_the_layers():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    _, _, table = page.partition("| layer | folders and modules |")
    rows = [line.split("|") for line in table.split("\n\n")[0].splitlines()[2:]]
    listed = [row[2].replace("`", "").replace(" ", "").split(",") for row in rows]
    assert listed[::-1] == layers()
