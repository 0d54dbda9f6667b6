"""Test the files of a release in empty environments.

    python -m tools.release smoke FILE ...    install each, check its version, simulate
    python -m tools.release check WHEEL       with every Python, and the oldest and newest allowed
                                              packages; writes docs/compatibility.md
    python -m tools.release notebooks WHEEL   run the notebooks with the wheel only

``make release`` and ``make release-check`` call it for the files that they build in dist/.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SHOWN = ("jax", "flax", "optax", "chex", "numpy", "scipy", "xarray", "scikit-learn", "typer")
# First version with a wheel for a Python, if the minimum version has none.
FIRST_WHEELS = {
    "3.13": {"numpy": "2.1", "scipy": "1.14.1"},
    "3.14": {"numpy": "2.3.2", "scipy": "1.16.1", "scikit-learn": "1.7.2"},
}
PROGRAM = """
import json
from importlib import metadata

import jax
import numpy as np
from flax import nnx

from pause_jax import Learning, SimConfig, __version__, presets, simulate
from pause_jax.learning import FlaxModel
from pause_jax.policies import named

bandit = SimConfig(num_clients=20, num_rounds=200, learning=None)
played = simulate(bandit, jax.random.key(0))
thompson = simulate(bandit.replace(policy=named("pause_thompson")), jax.random.key(0))
assert played.latency[100:].mean() < played.latency[:20].mean()

digits = presets.digits_small().replace(num_rounds=20, eval_every=20)
dense = simulate(digits, jax.random.key(0))


class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.out(x.reshape(len(x), -1))


own = digits.override({"learning.model": FlaxModel.of(Net)})
linear = simulate(own, jax.random.key(0))
print(json.dumps({
    "version": __version__,
    "packages": {name: metadata.version(name) for name in NAMES},
    "clients": np.asarray(played.clients).tolist(),
    "regret": float(played.regret.sum()),
    "thompson": np.asarray(thompson.clients).tolist(),
    "digits": [np.asarray(run.clients).tolist() for run in (dense, linear)],
    "accuracy": [float(run.test_accuracy[-1]) for run in (dense, linear)],
}))
"""
PLAYER = """
import sys

import nbclient
import nbformat

notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Return the output of a command; raise RuntimeError with all output if it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def try_out(file: Path, python: str | Path, wanted: tuple[str, ...] = ()) -> dict[str, Any]:
    """Install a wheel or sdist in an empty environment, with the ``wanted`` versions, and use it.

    Returns:
      The parsed output of ``PROGRAM``.

    Raises:
      RuntimeError: if a command fails, or the versions of program and file name differ.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(python, "-m", "venv", folder / "venv", cwd=folder)
        bin_ = folder / "venv" / "bin"
        run(bin_ / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            file.resolve(), *wanted, cwd=folder)  # fmt: skip
        (folder / "program.py").write_text(PROGRAM.replace("NAMES", repr(SHOWN)))
        said = run(bin_ / "pause-jax", "--version", cwd=folder)
        also = run(bin_ / "python", "-m", "pause_jax", "--version", cwd=folder)
        found = json.loads(run(bin_ / "python", "program.py", cwd=folder))
        if not said == also == f"pause_jax {found['version']}, JAX {found['packages']['jax']}\n":
            raise RuntimeError(f"{file.name}: --version says {said!r} and {also!r}")
        if f"-{found['version']}" not in file.name:
            raise RuntimeError(f"{file.name} contains version {found['version']}")
        return dict(found)


def floors(python: str) -> tuple[str, ...]:
    """Return the minimum version of each dependency in pyproject.toml, as requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    least = {}
    for text in project["dependencies"]:
        each = Requirement(text)
        (least[each.name],) = (s.version for s in each.specifier if s.operator == ">=")
    least |= {
        name: version
        for name, version in FIRST_WHEELS.get(python, {}).items()
        if Version(version) > Version(least[name])
    }
    return tuple(f"{name}=={version}" for name, version in least.items())


def pythons() -> Iterator[tuple[str, Path]]:
    """Yield the interpreters on the path or in pyenv, as (3.x, program)."""
    roots = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    for version in PYTHONS:
        known = [
            shutil.which(f"python{version}"),
            *glob.glob(f"{roots}/versions/{version}*/bin/python"),
        ]
        for path in filter(None, known):
            asked = subprocess.run([path, "-c", "import ensurepip"], capture_output=True)
            if asked.returncode == 0:
                yield version, Path(path)
                break


HEAD = """# Compatibility

Each row reports a test of this version's wheel in a fresh virtual environment. The test runs
`pause-jax --version`, 200 rounds without learning, and 20 rounds of `digits_small` with the default
network and with a Flax `nnx` module. `make release-check` runs the tests and writes this page.
**newest** rows use the versions that `pip install` chooses. **oldest** rows use each package's
minimum version in `pyproject.toml`. If the minimum version of a package has no wheel for the row's
Python version, the row uses the first later version that has one.

"""


def check(wheel: Path) -> None:
    """Test a wheel with the oldest and newest packages on every Python; write the page and exit."""
    tasks = [(v, path, kind) for v, path in pythons() for kind in ("oldest", "newest")]

    def attempt(task: tuple[str, Path, str]) -> dict[str, Any]:
        version, path, kind = task
        try:
            found = try_out(wheel, path, floors(version) if kind == "oldest" else ())
        except RuntimeError as error:
            found = {"error": str(error)}
        print(f"Python {version}, {kind}: {found.get('error', 'works')}", flush=True)
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(attempt, tasks))
    later = PAGE.read_text("utf-8").partition("\n## ")  # written by tools/canary.py
    PAGE.write_text(page(tasks, found) + "".join(later[1:]), "utf-8")
    sys.exit(any("error" in each for each in found))


def page(tasks: list[tuple[str, Path, str]], found: list[dict[str, Any]]) -> str:
    """Return the page: one row per environment, and whether all chose the same clients."""
    lines = [
        f"| Python | | {' | '.join(SHOWN)} | works | accuracy |",
        f"| --- | --- |{' --- |' * len(SHOWN)} --- | --- |",
    ]
    for (python, _, kind), each in zip(tasks, found, strict=True):
        packages = each.get("packages", {})
        cells = " | ".join(packages.get(name, "") for name in SHOWN)
        accuracy = ", ".join(f"{100 * a:.2f}" for a in each.get("accuracy", ()))
        works = "no" if "error" in each else "yes"
        lines.append(f"| {python} | {kind} | {cells} | {works} | {accuracy} |")
    good = [each for each in found if "error" not in each]
    choices = [[each[name] for name in ("clients", "thompson", "digits")] for each in good]
    same = all(each == choices[0] for each in choices)
    alike = "the same clients in all" if same else "different clients in some"
    return (
        HEAD + "\n".join(lines) + "\n\n"
        "accuracy: test accuracy in % after 20 rounds, with the default network and with the `nnx` "
        f"module.\nWith the same key, `pause` and `pause_thompson` chose {alike} of these "
        f"environments.\n\n{platform.system()}, {platform.machine()}, CPU.\n"
    )


def play_notebooks(wheel: Path) -> None:
    """Run shortened notebooks in an environment with only a notebook runner, as in Colab."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
        python = folder / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "ipykernel", "nbclient", "nbformat", cwd=folder)  # fmt: skip
        shutil.copy(wheel, folder)
        for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
            text = re.sub(r"ROUNDS = \d+", "ROUNDS = 10", path.read_text("utf-8"))
            text = re.sub(r"SEEDS = \d+", "SEEDS = 2", text)
            (folder / path.name).write_text(text, "utf-8")
            run(python, "-c", PLAYER, path.name, cwd=folder)
            run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pause_jax", cwd=folder)
            print(f"{path.name}: runs with only the wheel", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("smoke", "check", "notebooks"))
    parser.add_argument("files", nargs="+", type=Path)
    asked = parser.parse_args()
    for file in asked.files:
        if asked.what == "check":
            check(file)
        elif asked.what == "notebooks":
            play_notebooks(file)
        else:
            found = try_out(file, sys.executable)
            print(f"{file.name}: works, JAX {found['packages']['jax']}", flush=True)


if __name__ == "__main__":
    main()
