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


def test_custom_policy_has_at_most_twenty_lines(source):
    lines = source[source.index("class ") :].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 20


def test_custom_policy_finds_fast_clients_without_learning(policy):
    own, random = (
        jax.device_get(simulate(BASE.replace(policy=policy(explore=share)), jax.random.key(0)))
        for share in (0.1, 1.0)
    )
    assert own.latency[100:].mean() < 0.6 * random.latency[100:].mean()
    assert (own.counts[:10] > own.counts[10:].max()).sum() >= 5


def test_custom_policy_trains_a_model(policy):
    config = presets.digits_small(policy()).replace(
        num_rounds=20, eval_every=20, track_regret=False, privacy=NoPrivacy()
    )
    config = config.override({"learning.model": Linear()})
    result = simulate(config, jax.random.key(0), record=("test_accuracy",))
    assert 0.1 < np.asarray(result.test_accuracy)[-1] < 1


def test_policy_parameter_is_swept_in_one_compilation(policy):
    shares = [0.0, 0.5, 1.0]
    configs = [BASE.replace(policy=policy(explore=share)) for share in shares]
    keys = jax.random.split(jax.random.key(1), 2)
    data = sweep(configs, keys, progress=False)
    np.testing.assert_allclose(data["policy.explore"], shares)
    assert len({jax.tree.structure(config) for config in configs}) == 1
    one = simulate(configs[1], keys[1])
    np.testing.assert_array_equal(data.clients[1, 1], one.clients)


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


def test_command_line_loads_a_custom_policy(file, tmp_path):
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
def test_selection_with_wrong_shape_or_dtype_is_refused(source, tmp_path, returned, message):
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


def test_wrong_return_type_of_select_is_refused(source, tmp_path):
    path = tmp_path / "bare.py"
    path.write_text(source.replace(", no_info()", ""))
    config = SimConfig(learning=None, policy=runpy.run_path(str(path))["EpsilonGreedy"]())
    with pytest.raises(
        TypeError, match=r"select returned Selection, but must return \(Selection, Info\)"
    ):
        simulate(config, jax.random.key(0))


def test_broken_policy_file_gives_a_one_line_error(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def (")
    error = CliRunner().invoke(program(), ["compare", "--load", str(path)]).exception
    assert isinstance(error, ConfigError)
    assert "SyntaxError" in str(error)


def test_unknown_policy_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"Did you mean 'power_of_choice'.*--load FILE"):
        named("power_of_choise")


def test_built_in_policy_names_are_reserved(source):
    code = source.replace('"epsilon_greedy"', '"round_robin"')
    program = f"{code}\nfrom pause_jax.policies import named\nnamed('round_robin')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "EpsilonGreedy.name = 'round_robin': is already used by pause_jax" in done.stderr


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
