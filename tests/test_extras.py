"""What needs an optional package says so in one line. Nothing else needs one: test_wheel."""

import pathlib
import re

import pytest

from tests.support.command import python

pytestmark = pytest.mark.slow

WITHOUT_FLOWER = """
import sys
sys.modules["flwr"] = None  # as if it were not installed
import pause_jax
from pause_jax import selector
import pause_jax.deploy.flower
"""


def test_without_flower_only_its_own_room_is_closed():
    done = python("-c", WITHOUT_FLOWER)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: pause_jax.deploy.flower requires Flower 1.41 or later (")
    assert last.endswith("). Run: pip install 'pause_jax[flower]'")


@pytest.mark.parametrize("folder", ["pause_jax", "experiments", "benchmarks"])
def test_no_word_for_savez_that_old_versions_of_numpy_keep_as_an_array(folder):
    """They know ``allow_pickle`` from 2.2 on; before, the file cannot be read again."""
    for path in (pathlib.Path(__file__).parents[1] / folder).rglob("*.py"):
        assert not re.search(r"savez\w*\([^)]*allow_pickle", path.read_text(encoding="utf-8")), path
