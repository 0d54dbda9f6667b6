"""A mechanism of a user's own: one class in one file, and no change to the library."""

import csv
import pathlib
import runpy
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import pause_jax
from pause_jax import SimConfig, config_file, presets, simulate, sweep
from pause_jax.analysis.ledger import ledger, total_epsilon
from pause_jax.base.registry import choices
from pause_jax.cli import program
from pause_jax.learning import Linear
from pause_jax.privacy import MECHANISMS, Geometric, L1Laplace, Projected, Uniform
from pause_jax.privacy.audit import audit

pytestmark = pytest.mark.slow

SOURCE = '''
import jax
import jax.numpy as jnp

from pause_jax.privacy import Budgeted
from pause_jax.privacy.mechanisms import LaplaceLoss
from pause_jax.base.struct import number


class OneCoordinate(Budgeted):
    """Release one coordinate, drawn at random, with Laplace noise; unbiased once clamped."""

    name = "one_coordinate"
    summary = "one coordinate at random, clamped to +-C, Laplace(2C/eps)"
    unit = "update"

    bound: float = number(default=1.0, above=0)

    def privacy_loss(self, epsilon):
        return LaplaceLoss(epsilon)

    def privatize(self, key, update, epsilon):
        at_key, noise_key = jax.random.split(key)
        at = jax.random.randint(at_key, (), 0, update.size)
        noise = jax.random.laplace(noise_key, (), update.dtype)
        value = jnp.clip(update[at], -self.bound, self.bound) + noise * (2 * self.bound / epsilon)
        return jnp.zeros_like(update).at[at].set(update.size * value)
'''
KEY = jax.random.key(0)
BANDIT = SimConfig(num_clients=6, num_selected=2, num_rounds=8, learning=None, track_regret=False)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("own") / "my_mechanism.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def mechanism(file):
    return runpy.run_path(str(file))["OneCoordinate"]


def small(privacy):
    config = presets.digits_small("random").replace(num_rounds=4, eval_every=4, privacy=privacy)
    simple = {"max_steps": 2, "model": Linear(), "optimizer": "sgd"}
    config = config.override({f"learning.{name}": value for name, value in simple.items()})
    return config.replace(track_regret=False)


def test_custom_mechanism_is_unlisted_and_known_by_name(mechanism):
    assert mechanism not in MECHANISMS
    assert choices(pause_jax.privacy.Mechanism)["one_coordinate"] is mechanism


def test_claim_of_a_custom_mechanism_is_audited(mechanism):
    found = audit(mechanism(), KEY, epsilon=2.0, dimension=2, samples=20_000)
    assert (found.mechanism, found.claim, found.violated) == ("one_coordinate", "update", False)
    assert found.lower_bound > 1


def test_config_file_round_trips_a_nested_custom_mechanism(mechanism):
    own = mechanism(bound=0.25, budget=Uniform(total_epsilon=3.0))
    for privacy in (own, Projected(inner=own)):
        text = config_file.dumps(SimConfig(privacy=privacy))
        assert 'name = "one_coordinate"' in text
        assert config_file.loads(text).privacy == privacy
    by_name = config_file.loads('privacy = "one_coordinate"').privacy
    assert by_name == mechanism()


def test_mechanism_parameters_are_swept_in_one_compilation(mechanism):
    bounds, decays = [0.5, 1.0, 2.0], [0.04, 0.1, 0.2]
    configs = [
        BANDIT.replace(
            privacy=mechanism(bound=bound, budget=Geometric(total_epsilon=10.0, decay=decay))
        )
        for bound, decay in zip(bounds, decays, strict=True)
    ]
    assert len({jax.tree.structure(config) for config in configs}) == 1
    data = sweep(configs, jax.random.split(KEY, 2), progress=False)
    np.testing.assert_allclose(data["privacy.bound"], bounds, rtol=1e-6)
    np.testing.assert_allclose(data["privacy.budget.decay"], decays, rtol=1e-6)
    expected = 10 * -np.expm1(-np.reshape(decays, (3, 1, 1)) * data.counts.values)
    np.testing.assert_allclose(data.spent, expected, rtol=1e-5)


def test_ledger_uses_the_declared_privacy_loss(mechanism):
    budget = Geometric(total_epsilon=10.0)
    result = simulate(small(mechanism(budget=budget)), KEY)
    book = ledger(result)
    most = int(result.counts.max())
    assert (book.mechanism, book.unit, book.basic_delta) == ("one_coordinate", "update", 0)
    np.testing.assert_allclose(book.spent, 10 * (1 - np.exp(-0.04 * book.participations)), 1e-5)
    np.testing.assert_array_equal(book.whole_update, book.spent)
    laplace = L1Laplace(budget=budget)
    assert book.tight == total_epsilon(laplace, most, 1e-5)
    assert book.tight_at_most == total_epsilon(laplace, 4, 1e-5)
    assert "updates" not in book.unnoised
    nested = Projected(inner=Projected(inner=mechanism(budget=budget)))
    assert total_epsilon(nested, 4, 1e-5) == book.tight_at_most


def test_undeclared_privacy_loss_defaults_to_randomised_response(mechanism: Any):
    class Silent(mechanism):
        name = "silent_coordinate"

        def privacy_loss(self, epsilon):
            return super(mechanism, self).privacy_loss(epsilon)

    budget = Uniform(total_epsilon=8.0, horizon=8.0)
    safe, tight, basic = (
        total_epsilon(cls(budget=budget), 8, delta)
        for cls, delta in ((Silent, 1e-2), (mechanism, 1e-2), (Silent, 0.0))
    )
    assert tight < safe < basic


def test_command_line_labels_a_custom_mechanism_and_keeps_its_budget(file, tmp_path):
    arguments = ["compare", "--load", str(file), "--policies", "random:one_coordinate"]
    arguments += ["--set", "privacy.budget.total_epsilon=7", "--set", "learning.model=linear"]
    arguments += ["--set", "learning.optimizer=sgd", "--set", "track_regret=false"]
    arguments += ["--rounds", "3", "--seeds", "1", "--out", str(tmp_path)]
    arguments += ["--no-figures", "--no-report"]
    result = CliRunner().invoke(program(), arguments)
    assert result.exit_code == 0, result.output
    assert "random, one_coordinate" in " ".join(result.output.split())
    folder = tmp_path / "compare-digits_small"
    with (folder / "ledger.csv").open() as rows:
        rows = list(csv.DictReader(rows))
    assert {row["policy"] for row in rows} == {"random, one_coordinate"}
    assert {row["mechanism"] for row in rows} == {"one_coordinate"}
    kept: Any = config_file.load(folder / "configs" / "random__one_coordinate.toml").privacy
    assert type(kept).__name__ == "OneCoordinate"
    assert float(kept.budget.total_epsilon) == 7
