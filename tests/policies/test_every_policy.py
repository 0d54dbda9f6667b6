"""Every named policy runs, without learning and with, and says what it costs and releases."""

import jax
import numpy as np
import pytest

from pause_jax import SimConfig, presets, sweep
from pause_jax.policies import NAMED
from tests.support.runs import MAY_LEAVE_EMPTY, WITH_REPETITION

pytestmark = pytest.mark.slow

ASK = {"power_of_choice", "cpow_d", "adapow_d", "rbcs_f", "fedcs"}
RELEASE = {"power_of_choice", "cpow_d", "adapow_d", "rpow_d", "oort"}
# For the others it does not matter whether anything is trained.
TRAINED = [*sorted(ASK | RELEASE), "clustered_similarity", "pause", "all"]


def test_there_are_many_and_each_says_what_it_does():
    assert len(NAMED) >= 18
    for policy in NAMED.values():
        assert policy.name
        assert policy.summary
        assert policy.observes
        assert policy.assumes
        assert policy.reference


BANDIT = SimConfig(num_clients=15, num_selected=4, num_rounds=60, availability=0.8, learning=None)
LEARN = presets.digits_small().replace(num_rounds=20, eval_every=20)


def swept(config, names):
    """The runs of several policies; most of them share a program."""
    configs = {name: config.replace(policy=NAMED[name]) for name in names}
    return sweep(configs, jax.random.key(0), progress=False)


@pytest.fixture(scope="module")
def bandit():
    return swept(BANDIT, NAMED)


@pytest.fixture(scope="module")
def learned():
    return swept(LEARN, TRAINED)


@pytest.mark.parametrize("name", NAMED)
def test_it_runs_without_learning(name, bandit):
    check(name, BANDIT, bandit)


@pytest.mark.parametrize("name", TRAINED)
def test_it_trains_a_model(name, learned):
    run = check(name, LEARN, learned)
    assert run.test_accuracy[-1] > 0.14, "better than one class of ten"
    assert np.isfinite(run.train_loss).all()


def check(name, config, swept):
    """The run of a policy, whose figures agree with each other."""
    config = config.replace(policy=NAMED[name])
    run = swept.sel(config=name).isel(slot=slice(config.cohort_size), seed=0)
    clients = run.clients.values
    counts = np.bincount(clients[clients >= 0], minlength=config.num_clients)
    assert clients.shape == (config.num_rounds, config.cohort_size)
    assert counts.tolist() == run.counts.values.tolist()
    assert (run.latency > 0).all()
    np.testing.assert_allclose(run.clock, np.cumsum(run.latency), rtol=1e-4)
    if name not in MAY_LEAVE_EMPTY | WITH_REPETITION:
        assert (run.regret >= -1e-5).all()
    assert (run.query_seconds > 0).all() if name in ASK else (run.query_seconds == 0).all()
    assert (run.queried.sum() > 0) == (name in ASK)
    assert (run.latency > run.query_seconds).all()
    # Nothing is released where nothing is trained.
    assert bool(run.unnoised) == (config.learning is not None and name in RELEASE)
    return run
