"""Who is measured, and the virtual environments that the others live in."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
OURS = "pause_jax"


class Contender(NamedTuple):
    """One contender.

    Attributes:
      driver: module in ``benchmarks.drivers``.
      environment: file in ``requirements``; None for the Python that runs the harness.
      variant: given to the driver.
      idle: whether its process can wait, stopped, while others are measured. If not, a process
        is started for each measurement.
      compiles: whether it makes programs in its first run that later runs take.
      norms: whether it trains networks with batch norms.
      note: what it does that the others do not.
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
    "PyTorch loop": Contender("torch_loop", "torch", norms=True),
    "PyTorch channels_last": Contender("torch_loop", "torch", "channels_last", norms=True),
    "torch.func": Contender("torch_func", "torch", compiles=True),
    "pfl": Contender("pfl_driver", "pfl", note="visits a client's samples in stored order"),
    "Flower": Contender(
        "flower",
        "flower",
        idle=False,
        note="sends serialised models to processes and back; the start of its engine (Ray) and "
        "the first round are not counted",
    ),
    "FedJAX": Contender("fedjax_driver", "fedjax", compiles=True),
}
MATMUL = Contender("matmul", None, norms=True)


def environments() -> list[str]:
    """Names of the requirements files."""
    return sorted({c.environment for c in CONTENDERS.values() if c.environment})


def install(environment: str, folder: pathlib.Path) -> pathlib.Path:
    """Make an environment if it is not there or its requirements changed.

    Returns:
      Its Python.

    Raises:
      RuntimeError: with pip's last line, if it cannot be made.
    """
    requirements = HERE / "requirements" / f"{environment}.txt"
    home = folder.resolve() / environment
    python, stamp = home / "bin" / "python", home / "installed.txt"
    if stamp.is_file() and stamp.read_text() == requirements.read_text():
        return python
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(home)],
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
    """Ours, and the contenders of the environments that are wanted.

    Returns:
      (name -> (its Python, contender), name -> why it is not among them).
    """
    chosen = {OURS: (pathlib.Path(sys.executable), CONTENDERS[OURS])}
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
