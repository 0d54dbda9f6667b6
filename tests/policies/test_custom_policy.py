"""A policy of a user's own, as the guide shows it: no registration, no change to the library."""

import pathlib
import runpy
import sys
from typing import Any

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, config_file, presets, simulate, sweep
from pause_jax.policies import Selection, named, no_info
from tests.support.command import run
from tests.support.pages import block

pytestmark = pytest.mark.slow

BASE = SimConfig(
    num_clients=20, num_rounds=400, availability=0.8, learning=None, track_regret=False
)


@pytest.fixture(scope="module")
def source() -> str:
    """The guide's example."""
    return block("docs/guides/own_policy.md", "class EpsilonGreedy")


@pytest.fixture(scope="module")
def file(source, tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("own") / "my_policy.py"
    path.write_text(source)
    return path


@pytest.fixture(scope="module")
def policy(file):
    return runpy.run_path(str(file))["EpsilonGreedy"]


def test_custom_policy_has_at_most_twenty_lines(source):
    lines = source[source.index("class ") :].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 20


def test_custom_policy_finds_fast_clients_in_a_sweep_of_its_parameter(policy):
    shares = [0.0, 0.1, 1.0]
    configs = [BASE.replace(policy=policy(explore=share)) for share in shares]
    keys = jax.random.split(jax.random.key(1), 2)
    data = sweep(configs, keys, progress=False)
    np.testing.assert_allclose(data["policy.explore"], shares)
    assert len({jax.tree.structure(config) for config in configs}) == 1
    one = simulate(configs[1], keys[1])
    np.testing.assert_array_equal(data.clients[1, 1], one.clients)
    latency, counts = data.latency[:, 1, 100:].mean("round"), data.counts[1, 1]
    assert latency[1] < 0.6 * latency[2]
    assert (counts[:10] > counts[10:].max()).sum() >= 5


def test_policy_parameter_bounds_are_validated(policy):
    with pytest.raises(ConfigError, match=r"policy\.explore = 2\.0: .*<= 1"):
        simulate(SimConfig(policy=policy(explore=2.0), learning=None), jax.random.key(0))


def test_config_file_round_trips_a_custom_policy(policy):
    config = SimConfig(policy=policy(explore=0.25), learning=None)
    again = config_file.loads(config_file.dumps(config))
    assert type(again.policy).__name__ == "EpsilonGreedy"
    kept: Any = again.policy
    assert kept.explore == 0.25
    assert type(named("epsilon_greedy")).__name__ == "EpsilonGreedy"


def test_command_line_loads_a_custom_policy(file, tmp_path, capsys):
    arguments = ["compare", "--load", file, "--policies", "epsilon_greedy", "--rounds", "6"]
    for change in ("learning=none", "privacy=none", "track_regret=false", "num_clients=8"):
        arguments += ["--set", change]
    assert run(*arguments, "--seeds", "1", "--out", tmp_path, "--no-figures", "--no-report") == 0
    assert "epsilon_greedy" in capsys.readouterr().out


FIVE, SEVEN = np.arange(5), np.arange(7)


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ((Selection(SEVEN, SEVEN / 21), no_info()), r"clients \(7,\) int.*integers \[5\]"),
        ((Selection(FIVE / 10, FIVE / 10), no_info()), r"clients \(5,\) float"),
        (Selection(FIVE, FIVE / 10), r"returned Selection, but must return \(Selection, Info\)"),
    ],
)
def test_wrong_selection_is_refused(policy: Any, selected, message):
    class Wrong(policy):
        def build(self, context):
            return super().build(context)._replace(select=lambda *_: selected)

    with pytest.raises(TypeError, match=message):
        simulate(SimConfig(num_clients=20, learning=None, policy=Wrong()), jax.random.key(0))


def test_unknown_policy_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"Did you mean 'power_of_choice'.*--load FILE"):
        named("power_of_choise")


def test_built_in_policy_names_are_reserved(policy, monkeypatch):
    monkeypatch.setattr(policy, "name", "round_robin")
    words = "EpsilonGreedy.name = 'round_robin': is already used by pause_jax"
    with pytest.raises(ConfigError, match=words):
        named("round_robin")


def test_invalid_policy_setting_is_refused_before_any_run(policy: Any, monkeypatch):
    class Broken(policy):
        name = "broken"

        def build(self, context):
            # Only with learning: an update has coordinates.
            assert context.update_size == 0, "no coordinates expected"
            return super().build(context)

    def play(*args):
        raise AssertionError("a run began")

    module = sys.modules["pause_jax.sweeps.execute"]
    monkeypatch.setattr(module, "run_chunks", play)
    base = presets.digits_small("random").replace(num_rounds=4)
    configs = {"good": base, "own": base.replace(policy=Broken())}
    with pytest.raises(AssertionError, match="no coordinates expected"):
        sweep(configs, jax.random.split(jax.random.key(0), 2), progress=False)
    # What has no mistake is not refused.
    alone = base.replace(policy=Broken(), learning=None)
    with pytest.raises(AssertionError, match="a run began"):
        sweep(alone, jax.random.split(jax.random.key(0), 2), progress=False)
