"""DivFL: the sweep, facility location against an oracle, weights, and what is kept."""

import functools
import itertools

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, presets, simulate
from pause_jax.base import memory
from pause_jax.policies import DivFl, Selection
from pause_jax.policies.divfl import greedy, neighbours
from tests.reference import divfl as oracle
from tests.support.network import context, jitted, observation, received

pytestmark = pytest.mark.slow

K, M, D = 8, 3, 4
SIZES = np.array([4, 3, 9, 2, 4, 3, 1, 2])
ROUND = 1
EVERYONE = np.ones(K, bool)
KEYS = [jax.random.key(seed) for seed in range(40)]


def network(rng):
    """(distances, known, among) of K clients, all of whom are known in half of the networks."""
    points = rng.standard_normal((K, D))
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    known = rng.random(K) < rng.choice([0.7, 1.0])
    return apart, known, known & (rng.random(K) < 0.8)


def names(mask):
    return np.flatnonzero(mask).tolist()


@functools.cache
def compiled():
    return jitted(DivFl().build(context(SIZES, M, update_size=D)))


def active(selection):
    return np.asarray(selection.clients)[np.asarray(selection.weights) > 0].tolist()


def test_cohort_is_greedy_and_near_optimal():
    rng, fast, better = np.random.default_rng(0), jax.jit(greedy, static_argnums=3), 0
    for _ in range(40):
        apart, known, among = network(rng)
        rank = np.asarray(fast(apart, known, among, M, rng.permutation(K)))
        found = np.argsort(-rank)[: (rank > 0).sum()].tolist()
        slow = oracle.greedy(apart, names(known), names(among), M)
        assert len(found) == len(set(found) & set(names(among))) == len(slow)
        if not among.any():
            continue
        # Two clients may leave the same cost.
        for part in (1, len(found)):
            ours, theirs = (oracle.cost(apart, names(known), each[:part]) for each in (found, slow))
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        count, far = len(found), apart.max()
        most = far * known.sum() - oracle.best(apart, names(known), names(among), count)
        gained = far * known.sum() - oracle.cost(apart, names(known), found)
        assert gained >= 0.632 * most - 1e-4
        some = rng.permutation(names(among))[:count]
        better += oracle.cost(apart, names(known), some) > oracle.cost(apart, names(known), found)
    # Negative control: cohorts at random stand worse for all.
    assert better >= 25


def test_weights_are_shares_of_nearest_neighbours():
    rng, fast, differs = np.random.default_rng(1), jax.jit(neighbours), 0
    for _ in range(40):
        apart, known, _ = network(rng)
        clients = rng.permutation(K)[:M]
        if not known[clients].any():
            continue
        found = np.asarray(fast(apart, known, clients, np.ones(M, bool)))
        expected = oracle.shares(apart, names(known), clients.tolist())
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        differs += np.abs(found - SIZES[clients] / SIZES[clients].sum()).max() > 0.05
    # The program weighs by data size: the line that takes neighbours is commented out.
    assert differs >= 20


def test_every_client_is_received_once_before_comparisons():
    # The program takes all gradients in its first round, and charges nothing.
    policy = compiled()
    state, rng, order = policy.init(), np.random.default_rng(2), []
    for t in range(3):
        selection, _ = policy.select(KEYS[t], state, ROUND, EVERYONE)
        order.append(active(selection))
        seen = observation(np.ones(M), update=rng.standard_normal((M, D)))
        state = policy.update(state, selection, seen)
    assert sorted(order[0] + order[1]) == sorted(set(order[0] + order[1]))
    assert set(itertools.chain(*order)) == set(range(K))
    first = {tuple(active(policy.select(k, policy.init(), ROUND, EVERYONE)[0])) for k in KEYS}
    assert len(first) > 9


def test_select_matches_the_oracle_on_available_clients():
    rng = np.random.default_rng(3)
    updates = rng.standard_normal((K, D)).astype(np.float32)
    apart = np.linalg.norm(updates[:, None] - updates[None], axis=2)
    policy = compiled()
    state = received(policy, updates, M)
    np.testing.assert_allclose(state.distance, apart, atol=1e-5)
    for key in KEYS[:12]:
        available = rng.random(K) < 0.6
        expected = oracle.greedy(apart, range(K), names(available), M)
        selection, _ = policy.select(key, state, ROUND, available)
        assert active(selection) == expected
        if expected:
            found = np.asarray(selection.weights)[: len(expected)]
            np.testing.assert_allclose(found, oracle.shares(apart, range(K), expected), rtol=1e-5)


def test_only_received_updates_change_distances():
    updates = np.random.default_rng(4).standard_normal((K, D)).astype(np.float32)
    selection = Selection(np.array([1, 6, 2]), np.array([0.5, 0.5, 0.0], np.float32))
    seen = observation(np.ones(M), update=np.full((M, D), 9.0), received=[True, False, True])
    policy = compiled()
    new = policy.update(received(policy, updates, M), selection, seen)
    updates[1] = 9
    np.testing.assert_array_equal(new.updates, updates)
    apart = np.linalg.norm(updates[:, None] - updates[None], axis=2)
    np.testing.assert_allclose(new.distance, apart, atol=1e-5)


def test_equal_updates_are_tied_at_random_and_nonfinite_ones_ignored():
    policy = compiled()
    state = received(policy, np.ones((K, D)), M)
    first = [active(policy.select(key, state, ROUND, EVERYONE)[0])[0] for key in KEYS]
    assert len(set(first)) >= 5
    updates = np.random.default_rng(5).standard_normal((K, D))
    updates[3], updates[5, 0] = np.nan, np.inf
    state = received(policy, updates, M)
    selection, _ = policy.select(KEYS[0], state, ROUND, EVERYONE)
    assert len(set(active(selection))) == M
    np.testing.assert_allclose(np.asarray(selection.weights).sum(), 1, rtol=1e-5)


def test_state_larger_than_memory_is_refused(monkeypatch):
    config = presets.digits_small().replace(num_rounds=2, policy=DivFl())
    size = 4 * config.num_clients * 2410  # K d floats at least
    monkeypatch.setattr(memory, "machine_bytes", lambda: size)
    with pytest.raises(ConfigError, match=r"a round needs .* Simulate fewer clients"):
        simulate(config, KEYS[0])
