"""Plant faults one by one in copies of the project, and check that a test catches each.

    python -m tools.mutants            all faults in tools/mutants.txt
    python -m tools.mutants WORD       faults whose name or place contains WORD

The exit status is 1 if no test catches a fault, or if the place of a fault no longer exists.

A fault is two lines below the tests that must catch it. The first line is its name, the second is
``PLACE: RIGHT => WRONG``. PLACE is a module or a folder, and a function, class or constant in it
(``policies.e3cs update``). RIGHT must occur exactly once in its source as ``ast.unparse`` writes
it, so line breaks and moved functions do not matter.
"""

from __future__ import annotations

import ast
import functools
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tools.layers import PACKAGE, ROOT

TABLE = Path(__file__).with_suffix(".txt")
WORKERS = os.cpu_count() or 1


class Fault(NamedTuple):
    """Fault to plant in the source.

    Attributes:
      name: description of the fault.
      place: "module name", such as "policies.e3cs update"; "a.b" also means any module of
        folder a.b.
      right, wrong: correct source, and its replacement.
      tests: arguments of pytest.
    """

    name: str
    place: str
    right: str
    wrong: str
    tests: tuple[str, ...]


class LostPlaceError(LookupError):
    """Error for a fault whose source does not occur exactly once at its place."""


def faults() -> list[Fault]:
    """Return the faults in the table."""
    lines = [line.strip() for line in TABLE.read_text("utf-8").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    found: list[Fault] = []
    tests: tuple[str, ...] = ()
    while lines:
        head = lines.pop(0)
        if head.startswith("["):
            tests = tuple(shlex.split(head[1:-1]))
            continue
        place, _, change = lines.pop(0).partition(": ")
        right, arrow, wrong = change.partition(" =>")
        assert tests, f"{head}: no tests above it"
        assert arrow, f"{head}: no => in its second line"
        found.append(Fault(head, place, right, wrong.strip(), tests))
    return found


_Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def mutated(fault: Fault, root: Path = ROOT) -> tuple[Path, str]:
    """Return the file of a fault below ``root`` and its source with the fault.

    Raises:
      LostPlaceError: unless the right source occurs exactly once at the place.
    """
    module, name = fault.place.split()
    above = root if module.startswith("experiments") else root / PACKAGE.name
    path = above.joinpath(*module.split("."))
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    places = [
        (file, node)
        for file in files
        if file.is_file()
        for node in _definitions(_parsed(file), name.split("."))
    ]
    found = [(file, node) for file, node in places if fault.right in ast.unparse(node)]
    counts = [ast.unparse(node).count(fault.right) for _, node in found]
    if counts != [1]:
        raise LostPlaceError(
            f"{fault.name}: {fault.right!r} must occur once in {fault.place}, but occurs {counts} "
            f"times in {len(places)} places."
        )
    file, node = found[0]
    lines = file.read_text("utf-8").split("\n")
    decorators = getattr(node, "decorator_list", [])
    first = min(each.lineno for each in (node, *decorators)) - 1
    wrong = ast.unparse(node).replace(fault.right, fault.wrong)
    lines[first : node.end_lineno] = [textwrap.indent(wrong, " " * node.col_offset)]
    return file, "\n".join(lines)


@functools.cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _definitions(tree: ast.AST, name: list[str]) -> list[_Definition]:
    """Return the definitions of a dotted name at any depth, except inside another match."""
    found: list[_Definition] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Definition) and _name(node) == name[0]:
            found += [node] if len(name) == 1 else _definitions(node, name[1:])
        else:
            found += _definitions(node, name)
    return found


def _name(node: _Definition) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def main(words: list[str]) -> int:
    """Plant the faults that match any of the words, or all faults; return the exit status."""
    chosen = [f for f in faults() if not words or any(w in f"{f.name} {f.place}" for w in words)]
    began, lost, survived = time.monotonic(), 0, 0
    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def checked(fault: Fault) -> tuple[str, str]:
        copy = copies.get()
        try:
            return planted(copy, fault)
        except LostPlaceError as error:
            return "LOST", str(error)
        finally:
            copies.put(copy)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as workers:
        for number in range(WORKERS):
            copies.put(copied(Path(folder) / str(number) / "copy"))
        for fault, (verdict, why) in zip(chosen, workers.map(checked, chosen), strict=True):
            lost, survived = lost + (verdict == "LOST"), survived + (verdict == "SURVIVED")
            seconds = time.monotonic() - began
            print(f"{seconds:5.0f} s  {verdict:9} {fault.name}: {why}"[:160], flush=True)
    print(f"{len(chosen)} faults: {survived} survived, {lost} lost")
    return int(bool(survived or lost or not chosen))


def copied(folder: Path) -> Path:
    """Copy the working tree without the files that git ignores; return the folder."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for path in filter(None, paths.split("\0")):
        if (ROOT / path).is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes((ROOT / path).read_bytes())
    return folder


def planted(copy: Path, fault: Fault) -> tuple[str, str]:
    """Run the tests of a fault in a copy with the fault; return the verdict and the reason."""
    path, wrong = mutated(fault, copy)
    if problem := without_fault(copy, fault.tests):
        return "SURVIVED", f"its tests fail without the fault: {problem}"
    right = path.read_text("utf-8")
    path.write_text(wrong, "utf-8")
    try:
        status, error = run(copy, fault.tests)
    finally:
        path.write_text(right, "utf-8")
    if status == 1:
        return "caught", error
    return "SURVIVED", f"pytest exited with status {status}" if status else ""


@functools.cache
def without_fault(copy: Path, tests: tuple[str, ...]) -> str:
    """Return why the tests fail without a fault, or an empty text if they pass."""
    status, error = run(copy, tests)
    return f"status {status}: {error}" if status else ""


def run(copy: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Run tests in a copy; return pytest's exit status and the first error."""
    # No bytecode, because Python would miss a file that changes within a second.
    environment = {
        "PAUSE_JAX_SHARED": str(ROOT.parent / "shared"),
        **os.environ,
        **{"PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(copy)},
    }
    cache = f"cache_dir={ROOT / '.pytest_cache'}"  # it holds compiled programs
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "--tb=short", "-o", cache, *tests]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    output = (done.stdout + done.stderr).splitlines()
    errors = [line[1:].strip() for line in output if line.startswith("E ")]
    return done.returncode, (errors or output[-1:] or [""])[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
