"""Products have the precision of float32, those of the clients' training what JAX is told."""

import re
from collections import Counter

import jax
import numpy as np
import pytest

from pause_jax import SimConfig, simulate
from pause_jax.learning import Digits, Execution, Learning, Mlp
from pause_jax.policies import named
from pause_jax.privacy import L1Laplace, NoPrivacy, PrivUnitG, Projected
from pause_jax.run.preflight import execution_of, prepare
from pause_jax.run.programs import compiled_steps, program_spec, state_shapes
from pause_jax.run.record.result import chosen

SMALL = SimConfig(
    num_clients=4,
    num_selected=2,
    num_rounds=2,
    eval_every=1,
    track_regret=False,
    policy=named("random"),
    learning=Learning(data=Digits(num_train=40), model=Mlp(hidden=(8,))),
)


def precisions(config: SimConfig, precision: str | None) -> Counter[str]:
    """How many products of a round have which precision, from its program before compilation."""
    config, data = prepare(config)
    quantities = chosen(("clients", "test_loss"))
    spec = program_spec(config, data, quantities)
    steps = compiled_steps(spec, quantities, Execution(precision=precision), None)
    state, segment = state_shapes(config, data), spec.segment(config, 1, 1)
    lowered = steps.advance.lower(spec.config_of(config), data, state, segment, np.int32(0))
    program = lowered.as_text()
    assert program.count("dot_general") + program.count("convolution") > 0
    return Counter(re.findall(r"precision = \[(\w+), \w+\]", program))


@pytest.mark.slow
def test_only_training_uses_reduced_precision():
    config = SMALL.replace(privacy=L1Laplace())
    default, high = (precisions(config, name) for name in (None, "tensorfloat32"))
    assert default.keys() == {"DEFAULT", "HIGHEST"}
    assert high == {"HIGH": default["DEFAULT"], "HIGHEST": default["HIGHEST"]}
    # Training is the same with other mechanisms, and their products have no less.
    for mechanism in (PrivUnitG(), Projected(inner=L1Laplace(), dimension=4)):
        found = precisions(SMALL.replace(privacy=mechanism), None)
        assert found.keys() == {"DEFAULT", "HIGHEST"}
        assert found["DEFAULT"] == default["DEFAULT"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbcs_f", "sa_pause", "pause"])
def test_policies_compute_in_float32(name):
    config = SMALL.replace(learning=None, policy=named(name))
    assert precisions(config, None).keys() == {"HIGHEST"}


def test_jax_precision_is_read_when_a_run_starts():
    with jax.default_matmul_precision("bfloat16"):
        assert execution_of(3).precision == "bfloat16"
    assert execution_of(None) == Execution()


@pytest.mark.slow
def test_precision_does_not_change_results_on_cpu():
    key, record = jax.random.key(0), ("clients", "test_loss", "train_loss")
    config = SMALL.override({"privacy": NoPrivacy(), "learning.optimizer": "sgd"})
    default = simulate(config, key, record=record).values
    with jax.default_matmul_precision("tensorfloat32"):
        less = simulate(config, key, record=record).values
    for name, value in default.items():
        np.testing.assert_array_equal(value, less[name], err_msg=name)
