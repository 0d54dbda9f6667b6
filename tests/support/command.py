"""The command line in the process of a test, and Python in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

from pause_jax import cli

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments: object) -> int:
    """Run ``pause-jax`` with these arguments and return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pause-jax", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    return int(stop.value.code or 0)


def python(
    *arguments: object, timeout: float = 900, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in the project's folder, with these changes to the environment."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
