"""Pisces against a slow oracle: scores, who is explored, who is exploited, what it learns of."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.policies import Oort, Pisces, Selection
from tests.reference import pisces as oracle
from tests.support.network import context, drawn, jitted, observation, off, play

pytestmark = pytest.mark.slow

K, M = 12, 3
SIZES = 2 + np.random.default_rng(3).permutation(K)
CONFIG = Pisces(penalty=0.7, memory=3, exploration=0.6, exploration_decay=0.9, exploration_min=0.2)
USED = np.minimum(SIZES, 9).astype(np.float32)
NETWORK = context(SIZES, M, local_samples=jax.device_put(USED))


scores_of = jax.jit(CONFIG.scores)


@functools.cache
def compiled():
    return jitted(CONFIG.build(NETWORK))


@functools.cache
def played():
    rng = np.random.default_rng(0)

    def observe(t, selection):
        square, arrived = rng.uniform(0.5, 4, M), rng.random(M) < 0.8
        seen = observation(np.ones(M), square_loss=square, received=arrived)
        return seen._replace(staleness=rng.integers(0, 8, M).astype(np.int32))

    return tuple(play(compiled(), rng.random((40, K)) < 0.6, observe))


def replay():
    """(round, unknown clients, scores of the others) of our run, by the oracle."""
    slow = oracle.Pisces(USED, penalty=0.7, memory=3)
    for each in played():
        fresh = slow.fresh(np.flatnonzero(each.available))
        yield each, fresh, {k: slow.score(k) for k in slow.utility}
        for place in np.flatnonzero(each.selection.active & each.seen.received):
            reading = each.seen.square_loss[place], each.seen.staleness[place]
            slow.report(int(each.selection.clients[place]), *map(float, reading))


def test_scores_match_the_oracle():
    compared = 0
    for each, _, scores in replay():
        ours = np.asarray(scores_of(each.state))
        np.testing.assert_allclose(ours[list(scores)], list(scores.values()), rtol=1e-5)
        compared += len(scores)
    assert compared > 200


def test_best_clients_fill_slots_left_by_exploration():
    both = 0
    for each, fresh, scores in replay():
        here, chosen = np.flatnonzero(each.available), each.chosen
        share = max(0.6 * 0.9 ** (each.round - 1), 0.2)
        number_key = jax.random.split(jax.random.key(each.round), 3)[0]
        number = int(jax.random.bernoulli(number_key, jnp.float32(share), (M,)).sum())
        known = sorted((k for k in here if k in scores), key=scores.__getitem__, reverse=True)
        exploit = min(len(known), M - min(len(fresh), number))
        explored = [k for k in chosen if k in fresh]
        assert [k for k in chosen if k in scores] == known[:exploit]
        assert len(explored) == min(len(fresh), M - exploit)
        assert len(chosen) == min(len(here), M)
        both += 0 < len(explored) < M
    assert both >= 5


def test_number_explored_is_binomial_and_new_clients_are_equally_likely():
    state = (
        compiled()
        .init()
        ._replace(
            reports=(np.arange(K) < 8).astype(np.int32), utility=np.arange(1, 13, dtype=np.float32)
        )
    )
    for round, share in ((1, 0.6), (2, 0.54), (60, 0.2)):
        members = drawn(compiled().select, 4000, state, round, np.ones(K, bool)) > 0
        assert off(members[:, 8:], np.full(4, M * share / 4)).max() < 5
        assert not members[:, :5].any()
        # Negative control: the number m * share, rounded down, is another mean.
        assert abs(members[:, 8:].mean(axis=0).sum() - int(M * share)) > 0.1


def test_score_equals_oort_utility_without_overlap():
    seen = observation(np.ones(M), square_loss=[4.0, 9.0, 0.25])
    selection = Selection(np.arange(M), np.full(M, 1 / M, np.float32))
    ours, theirs = (
        policy.update(policy.init(), selection, seen)
        for policy in (compiled(), jitted(Oort().build(NETWORK)))
    )
    np.testing.assert_allclose(scores_of(ours), theirs.utility, rtol=1e-6)


def test_lost_or_nonfinite_updates_have_no_score():
    policy, clients = compiled(), np.array([7, 0, 4])
    selection = Selection(clients, np.full(M, 1 / M, np.float32))
    square = np.asarray([np.nan, np.inf, 4.0])
    seen = observation(np.ones(M), square_loss=square, received=[True, True, False])
    seen = seen._replace(staleness=np.array([1, 2, 3], np.int32))
    state = policy.update(policy.init(), selection, seen)
    assert np.asarray(state.reports)[clients].tolist() == [1, 1, 0]
    np.testing.assert_array_equal(scores_of(state), 0)
    assert np.asarray(state.lag)[clients].tolist() == [[0, 0, 1], [0, 0, 2], [0, 0, 0]]
