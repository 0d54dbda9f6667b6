"""Pisces against a slow oracle: scores, who is explored, who is exploited, what it learns of."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.policies import Oort, Pisces, Selection
from tests.reference import pisces as oracle
from tests.support.network import context, observation

pytestmark = pytest.mark.slow

K, M = 12, 3
SIZES = 2 + np.random.default_rng(3).permutation(K)
CONFIG = Pisces(penalty=0.7, memory=3, exploration=0.6, exploration_decay=0.9, exploration_min=0.2)
USED = np.minimum(SIZES, 9).astype(np.float32)
NETWORK = context(SIZES, M, local_samples=jax.device_put(USED))


@functools.cache
def compiled():
    """The policy's functions under jit."""
    policy = CONFIG.build(NETWORK)
    return policy._replace(select=jax.jit(policy.select), update=jax.jit(policy.update))


@functools.cache
def played(rounds=40):
    """(round, available, chosen, state before, oracle before, key) of every round of a run."""
    policy = compiled()
    slow = oracle.Pisces(np.minimum(SIZES, 9), penalty=0.7, memory=3)
    state, rng, out = policy.init(), np.random.default_rng(0), []
    for t in range(1, rounds + 1):
        key, available = jax.random.key(t), rng.random(K) < 0.6
        selection, _ = policy.select(key, state, np.asarray(t), available)
        selection = jax.tree.map(np.asarray, selection)
        chosen = selection.clients[selection.active]
        fresh, known = slow.fresh(np.flatnonzero(available)), dict(slow.utility)
        scores = {k: slow.score(k) for k in known}
        out.append((t, available, chosen.tolist(), fresh, scores, np.asarray(scores_of(state))))
        square = rng.uniform(0.5, 4, M).astype(np.float32)
        stale, arrived = rng.integers(0, 8, M).astype(np.int32), rng.random(M) < 0.8
        seen = observation(np.ones(M), square_loss=square, received=arrived)
        state = policy.update(state, selection, seen._replace(staleness=stale))
        for place in np.flatnonzero(selection.active & arrived):
            client = int(selection.clients[place])
            slow.report(client, float(square[place]), int(stale[place]))
    return out


scores_of = jax.jit(CONFIG.scores)


def test_scores_match_the_oracle():
    compared = 0
    for *_, scores, ours in played():
        for k, score in scores.items():
            assert ours[k] == pytest.approx(score, rel=1e-5)
            compared += 1
    assert compared > 200


def test_best_clients_fill_slots_left_by_exploration():
    both = 0
    for t, available, chosen, fresh, scores, _ in played():
        here = np.flatnonzero(available)
        share = max(0.6 * 0.9 ** (t - 1), 0.2)
        number_key = jax.random.split(jax.random.key(t), 3)[0]
        drawn = int(jax.random.bernoulli(number_key, jnp.float32(share), (M,)).sum())
        known = sorted((k for k in here if k in scores), key=scores.__getitem__, reverse=True)
        exploit = min(len(known), M - min(len(fresh), drawn))
        explored = [k for k in chosen if k in fresh]
        assert [k for k in chosen if k in scores] == known[:exploit]
        assert len(explored) == min(len(fresh), M - exploit)
        assert len(chosen) == min(len(here), M)
        both += 0 < len(explored) < M
    assert both >= 5


@jax.jit
def choices(state, round, keys):
    policy, everyone = CONFIG.build(NETWORK), jnp.ones(K, bool)
    return jax.vmap(lambda key: policy.select(key, state, round, everyone)[0].clients)(keys)


def frequencies(state, round, rounds=4000):
    """How often each client is chosen, over keys."""
    keys = jax.random.split(jax.random.key(1), rounds)
    chosen = np.asarray(choices(state, np.asarray(round), keys))
    return np.bincount(chosen.ravel(), minlength=K) / rounds


def test_number_explored_is_binomial_and_new_clients_are_equally_likely():
    state = CONFIG.build(NETWORK).init()
    state = state._replace(
        reports=(np.arange(K) < 8).astype(np.int32), utility=np.arange(1, 13, dtype=np.float32)
    )
    for round, share in ((1, 0.6), (2, 0.54), (60, 0.2)):
        found = frequencies(state, round)
        spread = np.sqrt(M * share / 4 * (1 - M * share / 4) / 4000)
        assert np.abs(found[8:] - M * share / 4).max() < 5 * spread
        assert found[:5].max() == 0
        # Negative control: the number m * share, rounded down, is another mean.
        assert abs(found[8:].sum() - int(M * share)) > 0.1


def test_score_equals_oort_utility_without_overlap():
    seen = observation(np.ones(M), square_loss=[4.0, 9.0, 0.25])
    selection, states = Selection(np.arange(M), np.full(M, 1 / M, np.float32)), []
    for config in (CONFIG, Oort()):
        policy = config.build(NETWORK)
        states.append(jax.jit(policy.update)(policy.init(), selection, seen))
    np.testing.assert_allclose(scores_of(states[0]), states[1].utility, rtol=1e-6)


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
