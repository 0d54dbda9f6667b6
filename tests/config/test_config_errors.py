import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import (
    ConfigError,
    Learning,
    SimConfig,
    config_file,
    presets,
    simulate,
    stack,
)
from pause_jax.bandit.search import Exhaustive
from pause_jax.config import validate
from pause_jax.learning import Cnn3, Digits, Dirichlet, LinearRegression, Mlp
from pause_jax.policies import Pause, named
from pause_jax.privacy import Table
from pause_jax.world.latency import Network, Traces

KEY = jax.random.key(0)
BANDIT = SimConfig(num_clients=6, num_selected=2, num_rounds=3, learning=None)
LEARN = BANDIT.replace(learning=Learning())


def error_of(config: SimConfig, key=KEY, **kwargs) -> pytest.ExceptionInfo[ConfigError]:
    """The ConfigError that ``simulate`` raises, without frames of JAX and not in many lines."""
    with pytest.raises(ConfigError) as error:
        simulate(config, key, **kwargs)
    assert_clear(error)
    return error


def assert_clear(error: pytest.ExceptionInfo[ConfigError]) -> None:
    frames = [str(entry.path).replace("\\", "/") for entry in error.traceback]
    assert not [path for path in frames if "jax/_src" in path]
    assert "\n" not in str(error.value)
    assert "Traced" not in str(error.value)


# Dotted path, value, and a word of the rule that the message must give.
BAD = [
    ("reward.alpha", -1.0, ">= 0"),
    ("reward.beta", 0.0, "> 0"),
    ("availability", 1.5, "<= 1"),
    ("privacy.budget.total_epsilon", -5.0, "> 0"),
    ("privacy.budget.decay", 81.0, "<= 80"),
    ("learning.learning_rate", jnp.asarray(-0.1), "> 0"),
    ("num_clients", 0, ">= 1"),
    ("num_selected", -1, ">= 1"),
    ("num_rounds", 0, ">= 1"),
    ("eval_every", 0, ">= 1"),
    ("availability", 0.0, "> 0"),
    ("latency.std", -0.1, "> 0"),
    ("policy.index.speed_weight", 0, "> 0"),
    ("learning.batch_size", 0, ">= 1"),
    ("learning.data.num_train", 0, ">= 1"),
    ("learning.max_steps", 0, ">= 1"),
    ("learning.keep_optimizer_state", "false", "True or False"),
    ("learning.optimizer", "adamm", "adam, adamax"),
    ("learning.data.num_train", 10.5, "whole number"),
    ("learning.model.hidden", (32, 0), ">= 1"),
    ("learning.model.hidden", 32, "tuple"),
    ("learning.partition.min_quality", 1.5, "<= 1"),
    ("track_regret", "no", "True or False"),
    ("when_spent", "never", "one of exclude, drop"),
    # A number must be within the range of float32.
    ("learning.learning_rate", 1e40, ""),
    ("privacy.budget.total_epsilon", 1e-50, ""),
    # Nested configs of a wrong type.
    ("policy", "pause", ""),
    ("policy", Pause, ""),
    ("reward", None, ""),
    ("learning.model", "mlp", ""),
    ("learning.partition", LinearRegression(), ""),
    ("privacy", 1.0, ""),
    ("availability_trace", "diurnal", "such as Diurnal()"),
]


@pytest.mark.parametrize(("path", "value", "rule"), BAD)
def test_bad_value_error_names_field_value_and_rule(path, value, rule):
    message = str(error_of(LEARN.override({path: value})).value)
    assert message.startswith(f"{path} = {value!r}")
    assert rule in message


@pytest.mark.parametrize("latency", [Network, Traces])
def test_path_with_nul_is_refused(latency):
    message = str(error_of(BANDIT.replace(latency=latency(path="no\0file"))).value)
    assert message == "latency.path = 'no\\x00file': must be a string without NUL."


def test_unknown_policy_name_lists_the_names():
    for call in (named, presets.digits_small):
        with pytest.raises(ConfigError, match=re.escape("policy = 'nope'")) as error:
            call("nope")
        assert_clear(error)
        for name in ("pause", "bsfl", "random", "fastest", "all", "genie", "pause_exhaustive"):
            assert name in str(error.value)


def test_more_clients_than_samples_are_refused():
    for config in (LEARN, LEARN.override({"learning.partition": Dirichlet()})):
        message = str(error_of(config.replace(num_clients=2000)).value)
        assert "num_clients = 2000" in message
        assert "1437" in message
    message = str(error_of(LEARN.override({"learning.data.num_train": 5})).value)
    assert "num_clients = 6" in message
    assert "5" in message


def test_exhaustive_search_of_large_network_error_states_number_of_sets():
    config = BANDIT.replace(
        num_clients=300, num_selected=15, policy=Pause(search=Exhaustive()), num_rounds=1
    )
    message = str(error_of(config).value)
    assert "7,687,875,149,867,948,862,546,720" in message
    assert "num_clients = 300" in message
    assert "num_selected = 15" in message
    assert "exact" in message


def test_images_too_small_for_model_are_refused():
    error = error_of(LEARN.override({"learning.model": Cnn3()}))
    assert "learning.model = cnn3" in str(error.value)
    assert "(8, 8, 1)" in str(error.value)
    assert "digits" in str(error.value)


@pytest.mark.parametrize("shares", [(), (0.9, 0.9), (-0.5,), (float("nan"),), (True,), ("half",)])
def test_bad_budget_table_is_refused(shares):
    config = BANDIT.override({"privacy.budget": Table(shares=shares)})
    assert str(error_of(config).value).startswith(f"privacy.budget.shares = {shares!r}")


@pytest.mark.parametrize(
    "key", [jax.random.PRNGKey(0), 0, None, np.zeros(2, np.uint32), "seed", jnp.zeros(())]
)
def test_untyped_key_is_refused(key):
    message = str(error_of(BANDIT, key).value)
    assert message.startswith("key = ")
    assert "jax.random.key(0)" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"config": BANDIT, "key": jax.random.split(KEY, 3)}, r"key.*vmap"),
        ({"config": stack([BANDIT, BANDIT])}, "vmap"),
        ({"config": None}, "SimConfig"),
        ({"config": Learning()}, "SimConfig"),
        ({"config": LEARN, "data": jnp.ones((3, 2))}, "^data = "),
    ],
)
def test_wrong_argument_of_simulate_is_refused(arguments, words):
    assert re.search(words, str(error_of(**arguments).value))


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("reward.gama", "gama"),
        ("reword.gamma", "reword"),
        ("reward.gamma.x", "x"),
        ("", "''"),
        # Names of classes, not fields of configs.
        ("policy.name", "name"),
        ("latency.summary", "summary"),
    ],
)
def test_unknown_override_path_lists_the_fields(path, wrong):
    with pytest.raises(ConfigError) as error:
        BANDIT.override({path: 1.0})
    assert_clear(error)
    assert str(error.value).startswith(f"{path}:")
    assert wrong in str(error.value)
    if path == "reward.gama":
        assert "alpha, beta, gamma" in str(error.value)
        assert "summary" not in str(error.value), "a class variable is no field"


# A path with an unknown field, and the suggestion.
MISPLACED = [
    ("policy.speed_weight", "policy.index.speed_weight"),
    ("gamma", "reward.gamma"),
    ("num_round", "num_rounds"),
    ("reward.gama", "gamma"),
]


@pytest.mark.parametrize(("path", "meant"), MISPLACED)
def test_unknown_field_error_suggests_intended_field(path, meant):
    config = LEARN.replace(policy=named("sa_pause"))
    with pytest.raises(ConfigError) as error:
        config.override({path: 1.0})
    assert_clear(error)
    assert f"Did you mean {meant!r}?" in str(error.value)
    *above, name = path.split(".")
    part = functools.reduce(getattr, above, config)
    with pytest.raises(ConfigError, match="has no field"):
        part.replace(**{name: 1.0})
    table = config_file.to_dict(config)
    functools.reduce(dict.__getitem__, above, table)[name] = 1.0
    with pytest.raises(ConfigError) as error:
        config_file.from_dict(table)
    assert str(error.value).startswith(f"{path}: ")
    assert f"has no field {name!r}" in str(error.value)
    assert f"Did you mean {meant!r}?" in str(error.value)


def test_override_requires_a_mapping():
    with pytest.raises(ConfigError, match="must be a dict of values keyed by path"):
        BANDIT.override([("reward.gamma", 1.0)])


def test_stacking_configs_of_different_structure_is_refused():
    with pytest.raises(ConfigError, match="static"):
        stack([BANDIT, BANDIT.replace(num_clients=7)])


def test_valid_config_passes():
    config = LEARN.override(
        {
            "reward.alpha": 0,
            "reward.gamma": np.float32(1.5),
            "latency.std": jnp.asarray(0.1),
            "learning.model": Mlp(hidden=()),
            "learning.partition.min_quality": 1,
        }
    )
    data = Digits().load()
    shapes = jax.eval_shape(lambda key: simulate(config, key, data), KEY)
    assert shapes.counts.shape == (6,)


def test_deadline_below_min_latency_is_refused():
    config = BANDIT.replace(deadline=0.04)
    assert "deadline = 0.04: must be >= latency.min_latency = 0.05" in str(error_of(config).value)
    validate(config.replace(deadline=0.06))


def test_field_below_none_error_says_to_set_parent_first():
    words = "availability_trace.share: availability_trace is none. Set availability_trace="
    with pytest.raises(ConfigError, match=words):
        BANDIT.override({"availability_trace.share": 0.4})
