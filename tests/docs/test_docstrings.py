"""The examples in docstrings run, and give what they say."""

import doctest
import importlib
import inspect

import pytest

import pause_jax
from pause_jax import SimConfig, regret, testing
from pause_jax.analysis.ledger import ledger
from pause_jax.learning import Dataset, FlaxModel
from pause_jax.policies import named
from tools.layers import modules

pytestmark = pytest.mark.slow

WITH_EXAMPLES = sorted(name for name, path in modules().items() if ">>>" in path.read_text("utf-8"))
DOORS = (
    *(pause_jax, pause_jax.simulate, regret.measure, ledger, testing.check_policy),
    *(Dataset.of, FlaxModel.of, named),
)
OPTIONS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_its_examples_give_what_they_say(name):
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_the_most_used_doors_have_examples(door):
    assert ">>>" in (inspect.getdoc(door) or "")


def test_a_wrong_example_is_seen(capsys):
    parser = doctest.DocTestParser()
    text = ">>> SimConfig(num_clients=7).num_clients\n8\n"
    example = parser.get_doctest(text, {"SimConfig": SimConfig}, "wrong", None, None)
    assert doctest.DocTestRunner(optionflags=OPTIONS).run(example).failed == 1
