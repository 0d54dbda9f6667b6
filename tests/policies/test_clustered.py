"""Clustered sampling by similarity: pouring, unbiasedness, clusters, distances, and draws."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pause_jax.policies import ClusteredSimilarity, MdSampling, Selection
from pause_jax.policies.clustered import (
    _clusters,
    arccos,
    similarity_distributions,
)
from tests.reference import clustered as oracle
from tests.support.network import context, drawn, groups_of, jitted, observation, received

pytestmark = pytest.mark.slow


def random_distance(rng, num_clients, dimensions=3):
    points = rng.standard_normal((num_clients, dimensions))
    return np.linalg.norm(points[:, None] - points[None], axis=2)


def ours(distance, sizes, m, order):
    return similarity_distributions(
        np.asarray(distance, np.float32), np.asarray(sizes, np.float32), np.asarray(order), m
    )


networks = st.tuples(
    st.lists(st.integers(1, 60), min_size=4, max_size=10), st.integers(1, 4), st.integers(0, 10**6)
)


# --- the distributions


@given(networks)
def test_distributions_match_the_oracle_for_the_same_clusters(network):
    sizes, m, seed = network
    rng = np.random.default_rng(seed)
    distance, order = random_distance(rng, len(sizes)), rng.permutation(len(sizes))
    rows = ours(distance, sizes, m, order)
    private, rest = oracle.large_clients(sizes, m)
    groups = []
    if len(private) < m:
        mass = np.array(rest, float)
        label = np.empty(len(sizes), int)
        label[order] = _clusters(distance[np.ix_(order, order)], mass[order], float(sum(sizes)))
        # Groups of equal mass come in the order of their labels.
        groups = [[int(i) for i in order if label[i] == c] for c in range(label.max() + 1)]
    slow = oracle.matrix(oracle.poured(sizes, m, groups, rest, private), len(sizes))
    np.testing.assert_allclose(rows, slow, atol=1e-12)


@given(networks)
def test_distributions_are_unbiased_with_less_variance_than_md(network):
    sizes, m, seed = network
    rng = np.random.default_rng(seed)
    # Any symmetric matrix, not only one of points.
    distance = rng.exponential(size=(len(sizes), len(sizes)))
    distance = np.triu(distance, 1) + np.triu(distance, 1).T
    rows = ours(distance, sizes, m, rng.permutation(len(sizes)))
    share = np.array(sizes) / sum(sizes)
    assert rows.min() >= 0
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(rows.sum(axis=0), m * share, atol=1e-12)
    variance = (rows * (1 - rows)).sum(axis=0) / m**2
    assert (variance <= share * (1 - share) / m + 1e-12).all()


def test_client_larger_than_a_bin_keeps_its_share():
    sizes, m = [6, 1, 1, 1, 1], 2
    marginals = ours(random_distance(np.random.default_rng(0), 5), sizes, m, np.arange(5)).sum(0)
    np.testing.assert_allclose(marginals / m, [0.6, 0.1, 0.1, 0.1, 0.1], atol=1e-12)


# --- the clusters


def test_clusters_are_ward_clusters_cut_at_full_bins():
    rng = np.random.default_rng(0)
    for _ in range(12):
        distance, mass = random_distance(rng, 9), rng.integers(1, 10, 9) * 3
        capacity = float(max(mass.sum() / 3, mass.max()))
        found = groups_of(_clusters(distance, mass.astype(float), capacity))
        assert found == oracle.ward_clusters(distance, mass.tolist(), capacity)
        assert all(sum(mass[i] for i in group) <= capacity for group in found)


# --- the distances


UPDATES = np.random.default_rng(4).standard_normal((6, 5)).astype(np.float32)
UPDATES[2] = 0
UPDATES[4] = 3 * UPDATES[1]
UPDATES[5] = -UPDATES[1]


def test_distances_match_numpy():
    turned = np.asarray(jax.jit(arccos)(UPDATES))
    norm = np.linalg.norm(UPDATES.astype(float), axis=1)
    cosine = UPDATES.astype(float) @ UPDATES.T / np.maximum(np.outer(norm, norm), 1e-30)
    angle = np.where(np.outer(norm, norm) > 0, np.arccos(np.clip(cosine, -1, 1)), 0)
    # The arc cosine is steep at 1: float32 leaves 1e-3 there.
    np.testing.assert_allclose(turned, angle, atol=2e-3)
    assert turned[1, 5] > 3.1
    assert turned[2, 0] == 0


# --- the policy


SIZES, M = np.array([4, 3, 3, 2, 4, 3, 3, 2]), 2
EVERYONE = np.ones(8, bool)


@functools.cache
def compiled(config, sizes=tuple(SIZES), m=M):
    return jitted(config.build(context(sizes, m, update_size=3)))


def learned(policy, updates, m=M):
    """The state after every client's update was seen, m at a time."""
    state = received(policy, np.asarray(updates, np.float32), m)
    np.testing.assert_array_equal(state, updates.astype(np.float32))
    return state


def weights(policy, state, draws=100, available=EVERYONE):
    """Aggregation weight of each client in many independent rounds, [draws, K]."""
    return drawn(policy.select, draws, state, 2, available)


def two_groups(rng):
    """Two directions of updates, with clients 0 to 3 and 4 to 7; groups of equal mass."""
    middle = np.repeat([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], 4, axis=0)
    return middle + 0.02 * rng.standard_normal((8, 3))


def test_similar_clients_share_a_bin():
    policy = compiled(ClusteredSimilarity())
    found = weights(policy, learned(policy, two_groups(np.random.default_rng(0))))
    # One client of each group in every round, so exactly half of the weight.
    np.testing.assert_allclose(found[:, :4].sum(axis=1), 0.5, atol=1e-6)
    # Negative control: MD sampling often takes both from one group.
    free = compiled(MdSampling())
    found = weights(free, free.init(), 500)
    assert (np.abs(found[:, :4].sum(axis=1) - 0.5) > 0.1).mean() > 0.3


def test_weights_are_unbiased():
    # The first client fills a bin of its own.
    sizes, m = np.array([14, 1, 3, 2, 4, 3, 1, 2]), 4
    updates = np.random.default_rng(1).standard_normal((8, 3))
    policy = compiled(ClusteredSimilarity(), tuple(sizes), m)
    found = weights(policy, learned(policy, updates, m), 1000)
    share = sizes / sizes.sum()
    error = found.std(axis=0) / len(found) ** 0.5
    assert (np.abs(found.mean(axis=0) - share) <= 4.5 * error + 1e-6).all()
    # Negative control: uniform shares.
    assert (np.abs(found.mean(axis=0) - 1 / 8) > 10 * error).any()
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert (found.var(axis=0) <= 1.1 * share * (1 - share) / m).all()


def test_absent_clients_are_never_drawn():
    available = np.array([True, False, True, True, False, False, True, False])
    policy = compiled(ClusteredSimilarity())
    state = learned(policy, two_groups(np.random.default_rng(0)))
    found = weights(policy, state, available=available)
    assert (found[:, ~available] == 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    # One group has only client 6, which then has half of the weight always.
    np.testing.assert_allclose(found[:, 6], 0.5, atol=1e-6)
    np.testing.assert_array_equal(weights(policy, state, available=~EVERYONE), 0)


def test_nonfinite_updates_are_ignored():
    updates = np.random.default_rng(2).standard_normal((8, 3))
    updates[3], updates[5, 0], updates[6] = np.nan, np.nan, np.inf
    policy = compiled(ClusteredSimilarity())
    found = weights(policy, learned(policy, updates))
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert (found[:, [3, 6]] > 0).any(axis=0).all()


def test_last_update_of_a_client_is_kept_until_the_next():
    policy = compiled(ClusteredSimilarity())
    state = learned(policy, two_groups(np.random.default_rng(0)))
    selection = Selection(np.array([1, 6]), np.array([1.0, 0.0], np.float32))
    seen = observation(np.ones(2), update=np.full((2, 3), 9.0))
    new = np.asarray(policy.update(state, selection, seen))
    np.testing.assert_array_equal(new[1], 9)
    rest = np.delete(np.arange(8), 1)
    np.testing.assert_array_equal(new[rest], np.asarray(state)[rest])
    both = Selection(np.array([1, 6]), np.full(2, 0.5, np.float32))
    seen = observation(np.ones(2), update=np.full((2, 3), 7.0), received=[False, True])
    second = np.asarray(policy.update(new, both, seen))
    np.testing.assert_array_equal(second[[1, 6]], [[9] * 3, [7] * 3])
