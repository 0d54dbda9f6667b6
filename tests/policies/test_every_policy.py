"""Named policies train a model, and say what they cost and release; without: test_rounds.py."""

import jax
import numpy as np
import pytest

from pause_jax import presets, sweep
from pause_jax.learning import Linear
from pause_jax.policies import NAMED
from tests.support.runs import ASK

pytestmark = pytest.mark.slow

RELEASE = {"rpow_d", "oort"}
# They read features, losses, squared losses and updates; all trains K. Answers of a loss are in
# test_query_losses.py, all entries of an update in test_privacy_aware.py.
TRAINED = ("fedcs", "rpow_d", "oort", "hics_fl", "all")


def test_every_policy_has_a_description():
    assert len(NAMED) >= 18
    for policy in NAMED.values():
        assert policy.name
        assert policy.summary
        assert policy.observes
        assert policy.assumes
        assert policy.reference


LEARN = presets.digits_small().replace(num_rounds=20, eval_every=20, track_regret=False)
LEARN = LEARN.override({"learning.model": Linear()})


@pytest.fixture(scope="module")
def learned():
    """All runs, in one sweep: many share a program."""
    configs = {name: LEARN.replace(policy=NAMED[name]) for name in TRAINED}
    record = (
        *("clients", "counts", "clock", "latency", "query_seconds", "queried"),
        *("test_accuracy", "train_loss"),
    )
    return sweep(configs, jax.random.key(0), record=record, progress=False).isel(seed=0)


@pytest.mark.parametrize("name", TRAINED)
def test_every_policy_trains_a_model(name, learned):
    config = LEARN.replace(policy=NAMED[name])
    run = learned.sel(config=name).isel(slot=slice(config.cohort_size))
    clients = run.clients.values
    counts = np.bincount(clients[clients >= 0], minlength=config.num_clients)
    assert counts.tolist() == run.counts.values.tolist()
    np.testing.assert_allclose(run.clock, np.cumsum(run.latency), rtol=1e-4)
    assert (run.query_seconds > 0).all() if name in ASK else (run.query_seconds == 0).all()
    assert (run.queried.sum() > 0) == (name in ASK)
    assert (run.latency > run.query_seconds).all()
    assert bool(run.unnoised) == (name in RELEASE)
    assert run.test_accuracy[-1] > 0.14, "better than one class of ten"
    assert np.isfinite(run.train_loss).all()
