"""Measured contenders, and the virtual environments of the peers."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
OURS = "pause_jax"


class Contender(NamedTuple):
    """Contender of the benchmark.

    Attributes:
      driver: module in ``benchmarks.drivers``.
      environment: file in ``requirements``; None for the Python that runs the harness.
      variant: variant that the driver receives.
      idle: whether the process can stay stopped while others are measured. Otherwise each
        measurement starts a process.
      compiles: whether the first run compiles programs that later runs use.
      norms: whether the contender trains networks with batch norms.
      note: peculiarity of the contender, for the report.
    """

    driver: str
    environment: str | None
    variant: str = ""
    idle: bool = True
    compiles: bool = False
    norms: bool = False
    note: str = ""


CONTENDERS = {
    OURS: Contender("pause", None, compiles=True, norms=True),
    "plain JAX": Contender("plain_jax", None, compiles=True, norms=True),
    "DrJAX": Contender("plain_jax", "drjax", "drjax", compiles=True, norms=True),
    "PyTorch loop": Contender("torch_loop", "torch", norms=True),
    "PyTorch channels_last": Contender("torch_loop", "torch", "channels_last", norms=True),
    "torch.func": Contender("torch_func", "torch", compiles=True),
    "pfl": Contender("pfl_driver", "pfl", note="trains on a client's samples in stored order"),
    "Flower": Contender(
        "flower",
        "flower",
        idle=False,
        note="sends serialised models between processes. Its times exclude the first round "
        "and the startup of its engine (Ray)",
    ),
    "BlazeFL": Contender(
        "blazefl_driver",
        "blazefl",
        note="runs its threads under the GIL. Version 3 runs without the GIL but needs Python 3.14",
    ),
    "FedJAX": Contender("fedjax_driver", "fedjax", compiles=True),
}
# Python of an environment that needs another than the harness.
PYTHONS = {"blazefl": "python3.12"}
MATMUL = Contender("matmul", None, norms=True)


def environments() -> list[str]:
    """Return the names of the requirements files."""
    return sorted({c.environment for c in CONTENDERS.values() if c.environment})


def install(environment: str, folder: pathlib.Path) -> pathlib.Path:
    """Create an environment if it is missing or its requirements changed.

    Returns:
      Path of the environment's Python.

    Raises:
      RuntimeError: if the installation fails, with the last line of its output.
    """
    requirements = HERE / "requirements" / f"{environment}.txt"
    home = folder.resolve() / environment
    python, stamp = home / "bin" / "python", home / "installed.txt"
    if stamp.is_file() and stamp.read_text() == requirements.read_text():
        return python
    base = shutil.which(PYTHONS[environment]) if environment in PYTHONS else sys.executable
    if base is None:
        raise RuntimeError(f"{PYTHONS[environment]} is missing")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [base, "-m", "venv", "--clear", str(home)],
        [*pip, "-r", str(requirements)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise RuntimeError("".join(last) or f"exit status {done.returncode}")
    stamp.write_text(requirements.read_text())
    return python


def gathered(
    wanted: Sequence[str], folder: pathlib.Path, say: Callable[[str], None]
) -> tuple[dict[str, tuple[pathlib.Path, Contender]], dict[str, str]]:
    """Install environments, and return the contenders in them and those without a separate one.

    Returns:
      (name -> (path of its Python, contender), name -> reason why it is missing).
    """
    here = pathlib.Path(sys.executable)
    chosen = {name: (here, c) for name, c in CONTENDERS.items() if c.environment is None}
    missing: dict[str, str] = {}
    for environment in wanted:
        say(f"environment {environment}")
        members = {n: c for n, c in CONTENDERS.items() if c.environment == environment}
        try:
            python = install(environment, folder)
            chosen |= {name: (python, contender) for name, contender in members.items()}
        except RuntimeError as error:
            missing |= dict.fromkeys(members, f"not installed: {error}")
    return chosen, missing
