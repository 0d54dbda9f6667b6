"""Configs to and from TOML."""

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, config_file, presets
from pause_jax.bandit.search import Annealing
from pause_jax.base.registry import choices
from pause_jax.config import canonical
from pause_jax.learning import DATASETS, DataConfig, Tfds
from pause_jax.policies import INDEX_RULES, NAMED, POLICIES, IndexRule, Pause, PolicyConfig
from pause_jax.privacy import BUDGETS, MECHANISMS, Budget, L1Laplace, Mechanism
from pause_jax.world.availability import AVAILABILITY_TRACES, AvailabilityTrace
from pause_jax.world.latency import LATENCIES, Latency


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, canonical(a), canonical(b))


@pytest.mark.parametrize(
    ("preset", "policy"),
    [
        *((preset, "pause") for preset in presets.PRESETS),
        *(("digits_small", name) for name in NAMED),
    ],
)
def test_config_round_trips_through_file(preset, policy):
    config = presets.PRESETS[preset](policy)
    assert_same(config_file.loads(config_file.dumps(config)), config)


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_budget_round_trips_through_file_as_arrays(budget):
    config = presets.digits_small().replace(privacy=L1Laplace(budget=budget()))
    assert_same(config_file.loads(config_file.dumps(canonical(config))), config)


def test_numbers_are_written_as_shortest_decimals():
    text = config_file.dumps(canonical(presets.digits_small().override({"reward.beta": 1.7})))
    assert "learning_rate = 0.01\n" in text
    assert "beta = 1.7\n" in text


def test_file_may_omit_fields_or_name_a_choice():
    config = config_file.loads('num_rounds = 7\npolicy = "sa_pause"\nlearning = "none"\n')
    assert config.num_rounds == 7
    assert isinstance(config.policy, Pause)
    assert isinstance(config.policy.search, Annealing)
    assert config.learning is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_round = 3", ["num_round", "Did you mean 'num_rounds'?"]),
        ("[reward]\nalfa = 3.0", ["reward.alfa", "Did you mean 'alpha'?"]),
        ('policy = "puase"', ["policy = 'puase'", "Did you mean 'pause'?"]),
        ("policy = 3", ["policy = 3", "table or a name"]),
        ('[learning.data]\nname = "imagenet"', ["learning.data.name = 'imagenet'", "digits"]),
        ("num_rounds = ", ["not a TOML file"]),
        ('learning = "garbage"', ["learning = 'garbage': must be"]),
        ('reward = "3"', ["reward = '3': must be a table. Its fields: reward.alpha"]),
        ("reward = 3", ["reward = 3: must be a table or a name"]),
        ("[policy]\nname = 3", ["policy.name = 3: must be a name"]),
        ("[policy]\nname = [1]", ["policy.name = [1]: must be a name"]),
        ('name = "mine"', ["name: SimConfig has no field 'name'"]),
        ('[policy]\nname = "sa_pause"\ncooling = 3', ["Did you mean 'policy.search.cooling'?"]),
    ],
)
def test_bad_file_error_names_problem_and_fix(text, words):
    with pytest.raises(ConfigError) as error:
        config_file.loads(text)
    for word in words:
        assert word in str(error.value)


def test_missing_file_error_names_the_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        config_file.load(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("reward.gamma", "2.5", 2.5),
        ("num_rounds", "30", 30),
        ("learning.model.hidden", "[8, 4]", (8, 4)),
        ("learning.keep_optimizer_state", "true", True),
        ("learning.optimizer", "sgd", "sgd"),
        ("learning", "none", None),
    ],
)
def test_values_from_a_command_line(path, text, value):
    assert config_file.parse_value(SimConfig(), path, text) == value


def test_a_choice_from_a_command_line_is_a_config():
    changes = {"privacy": config_file.parse_value(SimConfig(), "privacy", "l1_vector")}
    assert isinstance(presets.digits_small().override(changes).privacy, L1Laplace)


def test_none_with_other_default_round_trips_through_file():
    config = presets.digits_small().override({"learning.data": Tfds(test=None)})
    assert 'test = "none"' in config_file.dumps(config)
    assert config_file.loads(config_file.dumps(config)).learning.data.test is None


@pytest.mark.parametrize(
    ("base", "listed"),
    [
        (PolicyConfig, POLICIES),
        (IndexRule, INDEX_RULES),
        (Latency, LATENCIES),
        (AvailabilityTrace, AVAILABILITY_TRACES),
        (Mechanism, MECHANISMS),
        (Budget, BUDGETS),
        (DataConfig, DATASETS),
    ],
)
def test_listed_classes_are_those_found_by_name(base, listed):
    ours = {
        name: cls for name, cls in choices(base).items() if cls.__module__.startswith("pause_jax.")
    }
    assert ours == {cls.name: cls for cls in listed}


def test_empty_or_binary_file_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    for content, words in (
        (b"\n", "must not be empty"),
        (bytes([0xFF, 0xFE, 1]), "must be a TOML file in UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            config_file.load(path)


def test_optional_field_can_be_set_to_none():
    config = config_file.changed(SimConfig(), ["deadline=2.5", "wait_for=3"])
    assert (config.deadline, config.wait_for) == (2.5, 3)
    config = config_file.changed(config, ["deadline=none", "wait_for=none"])
    assert (config.deadline, config.wait_for) == (None, None)
