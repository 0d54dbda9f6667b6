"""What needs an optional package says so in one line, and nothing else needs it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys

for name in {without!r}:
    sys.modules[name] = None  # as if it were not installed
import pause_jax
from pause_jax import selector

import {module}
"""


def imported(module: str, without: list[str]) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(module=module, without=without)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_without_flower_only_its_own_room_is_closed():
    done = imported("pause_jax.flower", ["flwr"])
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: pause_jax.flower needs Flower 1.41 or later (")
    assert last.endswith("): pip install 'pause_jax[flower]'")
    assert imported("pause_jax.cli", ["flwr"]).returncode == 0
