"""A mechanism of a user's own: one class in one file, and no change to the library."""

import csv
import pathlib
import runpy
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from pause_jax import Learning, SimConfig, config_file, simulate
from pause_jax.analysis.ledger import ledger, total_epsilon
from pause_jax.cli import program
from pause_jax.learning import Digits, Linear
from pause_jax.policies import Random
from pause_jax.privacy import MECHANISMS, Geometric, L1Laplace, Projected, Uniform
from pause_jax.privacy.audit import audit
from pause_jax.testing import check_mechanism

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
BANDIT = SimConfig(
    num_clients=6, num_selected=2, num_rounds=8, policy=Random(), learning=None, track_regret=False
)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("own") / "my_mechanism.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def mechanism(file):
    return runpy.run_path(str(file))["OneCoordinate"]


def test_claim_of_a_custom_mechanism_is_audited(mechanism):
    found = audit(mechanism(), KEY, epsilon=2.0, dimension=2, samples=20_000)
    assert (found.mechanism, found.claim, found.violated) == ("one_coordinate", "update", False)
    assert found.lower_bound > 1


def test_custom_mechanism_keeps_the_contract_and_is_known_in_files(mechanism):
    assert mechanism not in MECHANISMS
    own = mechanism(bound=0.25, budget=Uniform(total_epsilon=3.0))
    for privacy in (own, Projected(inner=own)):
        check_mechanism(privacy)
        text = config_file.dumps(SimConfig(privacy=privacy))
        assert 'name = "one_coordinate"' in text
        assert config_file.loads(text).privacy == privacy
    by_name = config_file.loads('privacy = "one_coordinate"').privacy
    assert by_name == mechanism()


def test_ledger_uses_the_declared_privacy_loss(mechanism):
    budget = Geometric(total_epsilon=10.0)
    learning = Learning(data=Digits(num_train=60), model=Linear(), max_steps=1, optimizer="sgd")
    result = simulate(BANDIT.replace(privacy=mechanism(budget=budget), learning=learning), KEY)
    book = ledger(result)
    most = int(result.counts.max())
    assert (book.mechanism, book.unit, book.basic_delta) == ("one_coordinate", "update", 0)
    np.testing.assert_allclose(book.spent, 10 * (1 - np.exp(-0.04 * book.participations)), 1e-5)
    np.testing.assert_array_equal(book.whole_update, book.spent)
    laplace = L1Laplace(budget=budget)
    assert book.tight == total_epsilon(laplace, most, 1e-5)
    assert book.tight_at_most == total_epsilon(laplace, 8, 1e-5)
    assert "updates" not in book.unnoised
    nested = Projected(inner=Projected(inner=mechanism(budget=budget)))
    assert total_epsilon(nested, 8, 1e-5) == book.tight_at_most


@pytest.mark.nightly
def test_command_line_labels_a_custom_mechanism_and_keeps_its_budget(file, tmp_path):
    arguments = ["compare", "--load", str(file), "--policies", "random:one_coordinate"]
    arguments += ["--set", "privacy.budget.total_epsilon=7", "--set", "learning=none"]
    arguments += ["--set", "track_regret=false", "--rounds", "3", "--seeds", "1"]
    arguments += ["--out", str(tmp_path), "--no-figures", "--no-report"]
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
