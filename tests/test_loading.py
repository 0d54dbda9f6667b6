"""What ``import pause_jax`` loads, and what waits until it is asked for."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# What one simulation does not need: laboratories, plotting, accounting, data formats.
LATER = (
    "altair",
    "pause_jax.analysis",
    "pause_jax.cli",
    "pause_jax.privacy.attack",
    "pause_jax.privacy.audit",
    "pause_jax.analysis.report",
    "pause_jax.testing",
    "dp_accounting",
    "h5netcdf",
    "matplotlib",
    "scipy.stats",
    "sklearn",
    "tensorflow_datasets",
    "typer",
)
LOADED = """
import sys
{program}
later = {later}
print(*sorted(m for m in sys.modules if any(f"{{m}}.".startswith(f"{{x}}.") for x in later)))
"""


def loaded_early(program: str) -> list[str]:
    code = LOADED.format(program=program, later=LATER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_package_loads_no_laboratory_no_plotting_no_accounting():
    loaded = loaded_early("import pause_jax")
    assert loaded == [], f"`import pause_jax` also loads {', '.join(loaded)}"


def test_what_is_loaded_too_early_is_seen():
    assert "pause_jax.analysis.regret" in loaded_early("from pause_jax import regret")


def test_what_is_loaded_later_is_there_when_asked_for():
    # Those first that load none of the others.
    doors = {
        "distributed": "start",
        "metrics": "total_regret",
        "plotting": "save_figures",
        "regret": "measure",
    }
    lines = ["import sys, pause_jax"]
    for name, function in doors.items():
        lines += [
            f"assert 'pause_jax.{name}' not in sys.modules, '{name} is loaded already'",
            f"pause_jax.{name}.{function}",
            f"from pause_jax import {name}",
            f"assert {name} is pause_jax.{name}",
        ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
