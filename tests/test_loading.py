"""What ``import pause_jax`` loads, and what waits until it is asked for."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import pause_jax
from pause_jax.cli.main import program

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
# What a program that simulates needs, and the library's name or its help does not.
HEAVY = ("flax", "jax", "msgspec", "numpy", "optax", "orbax", "pandas", "scipy", "xarray")
LOADED = """
import sys
{program}
later = {later}
print(*sorted(m for m in sys.modules if any(f"{{m}}.".startswith(f"{{x}}.") for x in later)))
"""


def loaded_early(program: str, later: tuple[str, ...] = LATER) -> list[str]:
    code = LOADED.format(program=program, later=later)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_package_loads_no_laboratory_no_plotting_no_accounting():
    loaded = loaded_early("import pause_jax", LATER + HEAVY)
    assert loaded == [], f"`import pause_jax` also loads {', '.join(loaded)}"


def test_runs_need_no_labelled_arrays_before_their_end():
    imports = "from pause_jax import SimConfig, presets, simulate, sweep"
    loaded = loaded_early(imports, (*LATER, "flax", "optax", "orbax", "pandas", "xarray"))
    assert loaded == [], f"`{imports}` also loads {', '.join(loaded)}"


def test_a_command_begins_without_labelled_arrays():
    imports = "import pause_jax.cli.compare"
    later = ("altair", "dp_accounting", "h5netcdf", "matplotlib", "sklearn")
    assert loaded_early(imports, (*later, "pandas", "scipy", "xarray")) == []


def test_help_needs_no_jax():
    program = (
        "import io, contextlib\nfrom pause_jax.cli import main\n"
        "for arguments in ['--help'], ['--version'], []:\n"
        "    sys.argv[1:] = arguments\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        main()\n"
    )
    assert loaded_early(program, HEAVY) == []


def test_help_is_the_same_whatever_is_imported():
    run = CliRunner(env={"COLUMNS": "100"}).invoke
    assert run(program(()), ["--help"]).output == run(program(), ["--help"]).output
    assert "Did you mean 'report'" in run(program(["reprot"]), ["reprot"]).output


@pytest.mark.parametrize("name", pause_jax.__all__)
def test_every_public_name_is_there(name):
    found = getattr(pause_jax, name)
    assert vars(pause_jax)[name] is found


def test_what_is_loaded_later_is_there_when_asked_for():
    lines = [
        "import pause_jax.sweeps.execute, pause_jax.run.simulate",
        "assert callable(pause_jax.sweep)",
        "from pause_jax import sweep",
        "assert callable(sweep), 'a function, whatever was imported before'",
    ]
    # Those first that load none of the others.
    doors = {"metrics": "total_regret", "plotting": "save_figures", "regret": "measure"}
    for name, function in doors.items():
        lines += [
            f"assert 'pause_jax.{name}' not in sys.modules, '{name} is loaded already'",
            f"pause_jax.{name}.{function}",
            f"from pause_jax import {name}",
            f"assert {name} is pause_jax.{name}",
        ]
    # The control of the tests above: what is loaded is seen.
    assert "pause_jax.analysis.regret" in loaded_early("\n".join(lines))
