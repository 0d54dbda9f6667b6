"""Every named policy runs, without learning and with, and says what it costs and releases."""

import jax
import numpy as np
import pytest

from pause_jax import SimConfig, presets, simulate
from pause_jax.policies import NAMED
from tests.support.runs import MAY_LEAVE_EMPTY, WITH_REPETITION

ASK = {"power_of_choice", "cpow_d", "adapow_d", "rbcs_f", "fedcs"}
RELEASE = {"power_of_choice", "cpow_d", "adapow_d", "rpow_d", "oort"}


def test_there_are_many_and_each_says_what_it_does():
    assert len(NAMED) >= 18
    for policy in NAMED.values():
        assert policy.name
        assert policy.summary
        assert policy.observes
        assert policy.assumes
        assert policy.reference


@pytest.mark.parametrize("name", NAMED)
def test_it_runs_without_learning(name):
    config = SimConfig(
        num_clients=40,
        num_selected=5,
        num_rounds=200,
        availability=0.8,
        policy=NAMED[name],
        learning=None,
    )
    result = simulate(config, jax.random.key(0))
    clients = np.asarray(result.clients)
    assert clients.shape == (200, config.cohort_size)
    assert np.bincount(clients[clients >= 0], minlength=40).tolist() == result.counts.tolist()
    assert (result.latency > 0).all()
    np.testing.assert_allclose(result.clock, np.cumsum(result.latency), rtol=1e-4)
    if name not in MAY_LEAVE_EMPTY | WITH_REPETITION:
        assert (result.regret >= -1e-5).all()
    assert (result.query_seconds > 0).all() if name in ASK else (result.query_seconds == 0).all()
    assert (result.queried.sum() > 0) == (name in ASK)
    assert (result.latency > result.query_seconds).all()
    assert result.unnoised == (), "nothing is released where nothing is trained"


@pytest.mark.parametrize("name", NAMED)
def test_it_trains_a_model(name):
    config = presets.digits_small(name).replace(num_rounds=20, eval_every=20)
    result = simulate(config, jax.random.key(0))
    assert float(result.test_accuracy[-1]) > 0.14, "better than one class of ten"
    assert np.isfinite(result.train_loss).all()
    assert bool(result.unnoised) == (name in RELEASE)
