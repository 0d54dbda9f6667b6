"""Run the quick tests and the compiler's tests with the newest packages on each installed Python.

    python -m tools.canary           also writes a table into docs/compatibility.md

Each Python gets an environment in .canary/, without this project's constraints. An environment that
exists is upgraded.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

from tools.release import PAGE, ROOT, pythons

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
TESTS = {
    "quick tests": ("tests", "-n", "2", "--dist", "worksteal", "-m", "not slow and not nightly"),
    "compiler": ("tests/test_compiler.py",),
}
HEADING = "## The newest packages"
INTRODUCTION = """
`make canary` runs the quick tests with the newest package versions. It also runs regression tests
for programs that some XLA versions compile incorrectly.
"""


def attempt(version: str, python: Path) -> tuple[list[str], bool]:
    """Test in one environment, and return (row of the table, whether all tests passed)."""
    folder = ROOT / ".canary" / version
    program = folder / "bin" / "python"
    if not program.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade")
    subprocess.run([program, *install, "-e", f"{ROOT}[dev]"], cwd=ROOT, check=True)
    code = f"from importlib import metadata\nprint(*map(metadata.version, {PACKAGES!r}))"
    versions = subprocess.run([program, "-c", code], capture_output=True, text=True, check=True)
    row, passed = [version, *versions.stdout.split()], True
    for name, arguments in TESTS.items():
        done = subprocess.run(
            [program, "-m", "pytest", "-q", "-o", f"cache_dir={folder}/tests", *arguments],
            cwd=ROOT, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        print(done.stdout)
        last = done.stdout.strip().rpartition("\n")[2]
        row.append(re.sub(r"=+ ?| in [\d.]+s.*", "", last))
        passed &= done.returncode == 0
        print(f"Python {version}, {name}: {row[-1]}", flush=True)
    return [*row, str(datetime.datetime.now(datetime.UTC).date())], passed


def main() -> None:
    """Test on each installed Python, write the table, and exit."""
    results = [attempt(version, python) for version, python in pythons()]
    titles = ["Python", *PACKAGES, *TESTS, "date"]
    rows = [titles, ["---"] * len(titles), *(row for row, _ in results)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before = PAGE.read_text("utf-8").partition(HEADING)[0].rstrip()
    PAGE.write_text(f"{before}\n\n{HEADING}\n{INTRODUCTION}\n{table}\n", "utf-8")
    sys.exit(not all(passed for _, passed in results))


if __name__ == "__main__":
    main()
