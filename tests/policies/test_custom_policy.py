"""A policy of a user's own, as the guide shows it: no registration, no change to the library."""

import pathlib
import runpy
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from pause_jax import ConfigError, SimConfig, config_file, presets, simulate, sweep
from pause_jax.cli import program
from pause_jax.learning import Linear
from pause_jax.policies import named
from pause_jax.privacy import NoPrivacy
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


def test_it_is_twenty_lines(source):
    lines = source[source.index("class ") :].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 20


def test_it_runs_without_learning_and_learns_which_are_fast(policy):
    own, random = (
        jax.device_get(simulate(BASE.replace(policy=policy(explore=share)), jax.random.key(0)))
        for share in (0.1, 1.0)
    )
    assert own.latency[100:].mean() < 0.6 * random.latency[100:].mean()
    assert (own.counts[:10] > own.counts[10:].max()).sum() >= 5


def test_it_trains(policy):
    config = presets.digits_small(policy()).replace(
        num_rounds=20, eval_every=20, track_regret=False, privacy=NoPrivacy()
    )
    config = config.override({"learning.model": Linear()})
    result = simulate(config, jax.random.key(0), record=("test_accuracy",))
    assert 0.1 < np.asarray(result.test_accuracy)[-1] < 1


def test_its_number_is_swept_in_one_compilation_and_is_a_coordinate(policy):
    shares = [0.0, 0.5, 1.0]
    configs = [BASE.replace(policy=policy(explore=share)) for share in shares]
    keys = jax.random.split(jax.random.key(1), 2)
    data = sweep(configs, keys, progress=False)
    np.testing.assert_allclose(data["policy.explore"], shares)
    assert len({jax.tree.structure(config) for config in configs}) == 1
    one = simulate(configs[1], keys[1])
    np.testing.assert_array_equal(data.clients[1, 1], one.clients)


def test_its_rule_is_checked_at_the_door(policy):
    with pytest.raises(ConfigError, match=r"policy\.explore = 2\.0: .*<= 1"):
        simulate(SimConfig(policy=policy(explore=2.0), learning=None), jax.random.key(0))


def test_a_config_file_keeps_it(policy):
    config = SimConfig(policy=policy(explore=0.25), learning=None)
    again = config_file.loads(config_file.dumps(config))
    assert type(again.policy).__name__ == "EpsilonGreedy"
    kept: Any = again.policy
    assert kept.explore == 0.25
    assert type(named("epsilon_greedy")).__name__ == "EpsilonGreedy"


def test_the_command_line_loads_it(file, tmp_path):
    arguments = ["compare", "--load", str(file), "--policies", "epsilon_greedy", "--rounds", "6"]
    arguments += ["--set", "learning=none", "--set", "privacy=none", "--seeds", "1"]
    arguments += ["--out", str(tmp_path), "--no-figures", "--no-report"]
    result = CliRunner().invoke(program(), arguments)
    assert result.exit_code == 0, result.output
    assert "epsilon_greedy" in result.output
    missing = CliRunner().invoke(program(), ["compare", "--load", str(tmp_path / "no.py")])
    assert isinstance(missing.exception, ConfigError)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("top_clients(score, available, 7, ties)", r"clients \(7,\) int32.*integers \[5\]"),
        ("score[:5]", r"clients \(5,\) float32"),
    ],
)
def test_a_selection_of_the_wrong_form_is_named(source, tmp_path, returned, message):
    wrong = source.replace("top_clients(score, available, context.num_selected, ties)", returned)
    wrong = wrong.replace(
        "by_data_size(clients,", "Selection(clients, clients * 0.0 + 0.2) if 1 else ("
    )
    assert wrong != source
    path = tmp_path / "wrong.py"
    path.write_text("from pause_jax.policies import Selection\n" + wrong)
    config = SimConfig(
        num_clients=20, learning=None, policy=runpy.run_path(str(path))["EpsilonGreedy"]()
    )
    with pytest.raises(TypeError, match=message):
        simulate(config, jax.random.key(0))


def test_a_policy_that_returns_something_else_is_told_what_to_return(source, tmp_path):
    path = tmp_path / "bare.py"
    path.write_text(source.replace(", no_info()", ""))
    config = SimConfig(learning=None, policy=runpy.run_path(str(path))["EpsilonGreedy"]())
    with pytest.raises(TypeError, match=r"select returned Selection: must be \(Selection, Info\)"):
        simulate(config, jax.random.key(0))


def test_a_file_that_cannot_be_loaded_is_one_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def (")
    error = CliRunner().invoke(program(), ["compare", "--load", str(path)]).exception
    assert isinstance(error, ConfigError)
    assert "SyntaxError" in str(error)


def test_an_unknown_name_is_answered_with_the_nearest_and_a_hint():
    with pytest.raises(ConfigError, match=r"Did you mean 'power_of_choice'.*--load FILE"):
        named("power_of_choise")


def test_the_librarys_names_cannot_be_taken(source):
    code = source.replace('"epsilon_greedy"', '"round_robin"')
    program = f"{code}\nfrom pause_jax.policies import named\nnamed('round_robin')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "EpsilonGreedy.name = 'round_robin': is already used by pause_jax" in done.stderr


def test_its_mistake_shows_before_any_run(policy: Any, monkeypatch):
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
