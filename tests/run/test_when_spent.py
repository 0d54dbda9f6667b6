"""Clients whose budget is spent: excluded, or chosen and silent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import Learning, quantity, simulate
from pause_jax.analysis.ledger import ledger
from pause_jax.learning import Digits, Linear
from pause_jax.policies import NAMED, Fastest, Oort, Selection
from pause_jax.privacy import Geometric, PerCoordinateLaplace, Uniform
from pause_jax.run.rounds.round import only_received
from tests.support import runs
from tests.support.network import context, observation

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
HORIZON = 3
# `fastest` asks the same two clients in every round, so they are spent after three.
BUDGET = Uniform(total_epsilon=6.0, horizon=float(HORIZON))
BANDIT = runs.LEARN.replace(
    policy=Fastest(), privacy=PerCoordinateLaplace(budget=BUDGET), learning=None
)
LEARN = BANDIT.replace(
    num_rounds=6,
    eval_every=1,
    track_regret=False,
    learning=Learning(data=Digits(num_train=240), model=Linear(), max_steps=3),
)


RECORD = (
    *("clients", "counts", "queried", "spent", "latency"),
    *("test_loss", "train_loss", "first_nonfinite_round"),
)


def run(config):
    return jax.device_get(simulate(config, KEY, record=RECORD))


def test_excluded_clients_are_replaced_and_silent_ones_are_not():
    excluded = run(BANDIT)
    silent = run(BANDIT.replace(when_spent="drop"))
    np.testing.assert_array_equal(excluded.counts.max(), HORIZON)
    np.testing.assert_array_equal(np.sort(silent.counts), [0, 0, 0, 0, 8, 8])
    # The server waits for a client that it does not know to be spent.
    assert (silent.latency > 0).all()
    np.testing.assert_allclose(silent.spent.max(), 6.0, rtol=1e-6)
    np.testing.assert_array_equal(silent.clients[:HORIZON], excluded.clients[:HORIZON])
    # Two clients stop after three rounds, the next two after six.
    assert np.sort(ledger(excluded).last_release).tolist() == [0, 0, 3, 3, 6, 6]
    assert np.sort(ledger(silent).last_release).tolist() == [0, 0, 0, 0, 3, 3]


def test_weights_of_silent_clients_go_to_the_others():
    selection = Selection(jnp.arange(4), jnp.asarray([0.4, 0.3, 0.1, 0.2]))
    some = only_received(selection, jnp.asarray([True, False, True, False]))
    np.testing.assert_allclose(some.weights, [0.8, 0.0, 0.2, 0.0], rtol=1e-6)
    nobody = only_received(selection, jnp.zeros(4, bool))
    np.testing.assert_array_equal(nobody.weights, jnp.zeros(4))
    # An empty slot stays empty, and weights that do not sum to 1 keep their sum.
    selection = Selection(jnp.arange(3), jnp.asarray([0.0, 1.0, 2.0]))
    some = only_received(selection, jnp.asarray([True, True, False]))
    np.testing.assert_allclose(some.weights, [0.0, 3.0, 0.0], rtol=1e-6)


@quantity("round", "slot")
def losses(r):
    """What the cohort's training said."""
    return r.trained.loss


@quantity("round", "slot")
def square_losses(r):
    """The same of squares."""
    return r.trained.square_loss


@quantity("round", "client")
def known(r):
    """What the policy knows of each client's loss."""
    state = r.after.policy
    return state.utility if hasattr(state, "utility") else state.loss


# Everybody is chosen in every round, and silent from the second or third on.
TWICE = LEARN.replace(
    num_selected=6,
    num_rounds=4,
    when_spent="drop",
    privacy=PerCoordinateLaplace(budget=Uniform(total_epsilon=400.0, horizon=2.0)),
)


@pytest.mark.parametrize("name", ["rpow_d", "oort"])
def test_last_loss_of_a_silent_client_is_kept(name):
    config = TWICE.replace(policy=NAMED[name])
    result = simulate(config, KEY, record=("clients", "counts", "latency", "train_loss", known,
                                           losses, square_losses))  # fmt: skip
    assert (result.counts == 4).all()
    assert np.isnan(result.train_loss).tolist() == [False, False, True, True]
    assert (result.latency > 0).all()
    seen = np.asarray(result.known)
    for round in range(4):
        heard = min(round, 1)  # the last round in which clients sent something
        order = np.argsort(result.clients[heard])
        expected = np.asarray(result.losses[heard])[order]
        if name == "oort":
            # |B| sqrt(mean squared loss): 40 samples of each client, of 3 batches of 20.
            expected = 40 * np.sqrt(np.asarray(result.square_losses[heard])[order])
        np.testing.assert_allclose(seen[round], expected, rtol=1e-5)
    assert (seen[0] != seen[1]).all()
    assert (seen > 0).all()


def test_oort_tracks_utility_age_and_last_durations():
    policy = Oort().build(context([10, 10, 10, 10], 2))
    selection = Selection(jnp.asarray([2, 0]), jnp.asarray([0.5, 0.5]))
    state = policy.init()
    state = policy.update(state, selection, observation([3.0, 1.0], square_loss=[4.0, 9.0]))
    np.testing.assert_allclose(state.utility, [30, 0, 20, 0])
    one_silent = observation([5.0, 7.0], square_loss=[jnp.nan, 1.0], received=[False, True])
    after = policy.update(state, selection, one_silent)
    np.testing.assert_allclose(after.utility, [10, 0, 20, 0])
    np.testing.assert_array_equal(after.last_round, [2, 0, 1, 0])
    np.testing.assert_allclose(after.duration[jnp.asarray([2, 0])], [5, 7])
    # The mean over the exploited ones whose updates were received: client 0 alone.
    np.testing.assert_allclose(after.exploited[-1], 10)


def test_silent_client_takes_time_without_reporting_a_loss():
    config = TWICE.replace(policy=NAMED["power_of_choice"], learning=LEARN.learning)
    result = simulate(config, KEY, record=("queried", "counts", "query_seconds", known))
    assert (result.counts == 4).all()
    assert (result.queried == 2).all()
    assert (result.query_seconds > 0).all()
    known_losses = np.asarray(result.known)
    assert np.isfinite(known_losses).all()
    np.testing.assert_array_equal(known_losses[1:], known_losses[[1, 1, 1]])
    assert (known_losses[0] != known_losses[1]).any()


@pytest.mark.parametrize("how", ["exclude", "drop"])
def test_open_ended_budget_excludes_no_client_and_ends_in_noise(how):
    """With eta = 20 the fifth participation has e^-100 of the budget: 0 in float32."""
    endless = PerCoordinateLaplace(budget=Geometric(decay=20.0))
    result = run(LEARN.replace(num_rounds=30, privacy=endless, when_spent=how))
    assert result.counts.max() == 30
    assert (result.clients >= 0).all()
    book = ledger(result)
    assert not book.exhausted.any()
    np.testing.assert_array_equal(book.releases, book.participations)
    assert book.spent.max() == pytest.approx(200.0)
    assert result.first_nonfinite_round == 0
    kernel = np.abs(np.asarray(jax.tree.leaves(result.variables)[-1], float))
    # Delta / (2^-100 eps_bar) is 2e25; an update without noise is within Delta / 2 = 0.0015.
    assert 1e24 < np.median(kernel) < 1e27
