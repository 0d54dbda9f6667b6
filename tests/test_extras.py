"""What needs an optional package says so in one line, and nothing else needs it."""

import pathlib
import re
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


OPTIONAL = (
    *("altair", "array_record", "cloudpickle", "dask", "distributed", "dp_accounting", "jinja2"),
    *("flwr", "matplotlib", "optuna", "PIL", "pyarrow", "safetensors", "submitit"),
    *("tensorboardX", "tensorflow_datasets", "vl_convert", "zarr"),
)


def test_a_comparison_without_figures_needs_no_extra(tmp_path):
    program = f"""
import sys

for name in {OPTIONAL!r}:
    sys.modules[name] = None  # as if it were not installed
from pause_jax.cli import main

sys.argv[1:] = ["compare", "--policies", "random", "--rounds", "5", "--seeds", "2",
                "--set", "learning=none", "--set", "track_regret=false", "--no-figures"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "compare-digits_small" / "data.nc").exists()


def test_without_flower_only_its_own_room_is_closed():
    done = imported("pause_jax.deploy.flower", ["flwr"])
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: pause_jax.deploy.flower requires Flower 1.41 or later (")
    assert last.endswith("). Run: pip install 'pause_jax[flower]'")


@pytest.mark.parametrize("folder", ["pause_jax", "experiments", "benchmarks"])
def test_no_word_for_savez_that_old_versions_of_numpy_keep_as_an_array(folder):
    """They know ``allow_pickle`` from 2.2 on; before, the file cannot be read again."""
    for path in (pathlib.Path(__file__).parents[1] / folder).rglob("*.py"):
        assert not re.search(r"savez\w*\([^)]*allow_pickle", path.read_text(encoding="utf-8")), path
