"""Scores of the model at each client: what is recorded, when, and what cannot be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, simulate, sweep
from pause_jax.learning.task import Classification
from pause_jax.policies import NAMED
from pause_jax.rng import keys
from pause_jax.run.preflight import prepare
from pause_jax.run.setup import learner_of
from tests.support.runs import BANDIT, KEY, LEARN

pytestmark = pytest.mark.slow

SCORES = ("client_accuracy", "client_loss")
METRICS = ("test_accuracy", "test_loss")


class Sure(Classification):
    """Classification that also scores how large the largest output is."""

    name = "sure"
    metrics = ("test_accuracy", "top")

    def scores(self, outputs, targets):
        return {**super().scores(outputs, targets), "top": jnp.max(outputs, axis=-1)}


HELD = LEARN.override({"policy": NAMED["random"], "learning.holdout": 0.3, "learning.task": Sure()})


def scores_of(variables):
    learner = learner_of(*prepare(HELD))

    @jax.jit
    def scored(key, variables):
        assert learner.evaluate_clients is not None
        state = learner.init(keys.streams(key))
        return learner.evaluate_clients(state._replace(variables=variables))

    return scored(KEY, variables)


def test_recorded_client_scores_match_the_evaluated_models():
    record = (*SCORES, "client_top", "counts")
    result = simulate(HELD, KEY, record=record)
    expected = scores_of(result.variables)
    for name, metric in zip((*SCORES, "client_top"), (*METRICS, "top"), strict=True):
        recorded = np.asarray(result.values[name])
        assert recorded.shape == (3, 6)  # rounds 3, 6 and 8
        np.testing.assert_allclose(recorded[-1], expected[metric], rtol=1e-5)
        assert np.isfinite(recorded).all()
    assert (np.diff(result.client_loss, axis=0) != 0).all()

    seeds = jnp.stack([KEY, jax.random.key(7)])
    data = sweep({"mine": HELD}, seeds, record=record, progress=False)
    assert data.client_loss.dims == ("config", "seed", "eval_round", "client")
    np.testing.assert_allclose(data.client_loss[0, 0], result.client_loss, rtol=1e-5)
    np.testing.assert_allclose(data.client_accuracy[0, 0], result.client_accuracy, rtol=1e-5)


def test_client_scores_are_computed_only_on_request(monkeypatch):
    def scored(*args):
        raise AssertionError("clients were scored")

    monkeypatch.setattr("pause_jax.learning.server.evaluate_clients", scored)
    config = HELD.replace(num_rounds=3)
    assert "client_loss" not in simulate(config, KEY).values
    with pytest.raises(AssertionError, match="clients were scored"):
        simulate(config, KEY, record=("client_loss",))


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        (BANDIT, "client_loss", "'client_loss' needs held-out samples, .* = None"),
        (LEARN, "client_loss", r"learning.holdout = 0, .* Set learning.holdout, for example"),
        (HELD, "client_acuracy", "Did you mean 'client_accuracy'"),
        (HELD, "client_id", "the name 'client_id' must be unused"),
    ],
)
def test_unavailable_client_scores_are_refused_before_any_run(config, name, words):
    with pytest.raises(ConfigError, match=words):
        simulate(config, KEY, record=(name,))
    with pytest.raises(ConfigError, match=words):
        sweep([HELD, config], KEY, record=(name,), progress=False)
