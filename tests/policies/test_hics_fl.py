"""HiCS-FL: entropies, distances, clusters, the draws against an oracle, the sweep, its slice."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError
from pause_jax.policies import HicsFl, Selection
from pause_jax.policies.clustered import arccos, cluster_means, draw_in_clusters, ward_labels
from tests.reference import hics_fl as oracle
from tests.support.network import (
    context,
    drawn,
    groups_of,
    jitted,
    observation,
    off,
    received,
)

pytestmark = pytest.mark.slow

K, M, C, H = 8, 2, 5, 3
SIZE = C * (1 + H) + 4
# The output layer stands in the middle of the update.
PLACES = 2 + np.concatenate(
    [np.arange(C)[:, None], C + np.arange(H * C).reshape(H, C).T], axis=1
).astype(np.int32)
EVERYONE = np.ones(K, bool)


def network(m=M, **changes):
    return context(np.arange(1, K + 1), m, update_size=SIZE, output_layer=lambda: PLACES, **changes)


def labelled(rng):
    """Updates of clients of one label (0 to 3) and of all (4 to 7), small as the output layer's."""
    updates = 1e-4 * rng.standard_normal((K, SIZE))
    updates[np.arange(4), 2 + np.arange(4)] += 0.02
    return updates.astype(np.float32)


@functools.cache
def compiled(m=M):
    """The policy under jit; its update is that of every config."""
    return jitted(HicsFl().build(network(m)))


def learned(updates):
    return received(compiled(), updates, M)


def test_entropy_is_computed_from_the_output_layers_bias():
    updates = labelled(np.random.default_rng(0))
    state = learned(updates)
    expected = [oracle.entropy(each, 0.003) for each in updates[:, 2 : 2 + C]]
    found = jax.jit(HicsFl(temperature=0.003).entropies)(state.layer)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert max(expected[:4]) < 0.5 < 1.5 < min(expected[4:])


def test_clusters_match_ward_on_distances_not_on_rows():
    rng, angles_of = np.random.default_rng(0), jax.jit(arccos)
    for _ in range(6):
        layers, h = rng.standard_normal((12, C, 1 + H)), rng.random(12)
        angles = np.asarray(angles_of(layers.reshape(12, -1)))
        apart = angles + 2 * abs(h[:, None] - h)
        np.testing.assert_allclose(apart, oracle.distance(layers, h, 2.0), atol=2e-3)
        # The rows of the matrix as points, as in the program, mostly give other clusters.
        for number in range(1, 7):
            assert groups_of(ward_labels(apart, number)) == oracle.clusters(apart, number)


def chances(groups, taste, among, m):
    """Each client's chance of being drawn, by the oracle."""
    chance = oracle.inclusion(groups, taste, among, m)
    return np.array([chance[k] for k in range(K)])


def test_draws_have_the_oracles_probabilities():
    # Three clusters, of a cohort of two: the program counts clusters in a list of m.
    label, taste = np.array([0, 0, 0, 1, 1, 2, 2, 2]), np.array([0.3, -0.5, 1.5], np.float32)
    groups = [[0, 1, 2], [3, 4], [5, 6, 7]]

    def draw(key, taste, m, among):
        rank = draw_in_clusters(key, jnp.asarray(label), taste, among, m)
        return Selection(jnp.arange(K), jnp.minimum(rank, 1.0)), None

    for m, here in ((2, range(K)), (4, [0, 3, 5, 6, 7]), (3, [1, 4])):
        among = np.isin(np.arange(K), here)
        expected = chances(groups, taste, set(here), m)
        members = drawn(draw, 6000, taste, m, among) > 0
        assert off(members, expected).max() < 4.5
        assert not members[:, ~among].any()
        if m == 2:
            # Negative control: clients in proportion to their cluster's weight.
            by_client = 2 * np.exp(taste[label]) / np.exp(taste[label]).sum()
            assert off(members, by_client).max() > 8


def test_mean_entropy_of_a_cluster_ignores_unseen_clients():
    h, label = np.array([1.0, 2.0, 6.0, 5.0]), np.array([0, 0, 0, 2])
    known = np.array([True, True, False, True])
    found = jax.jit(cluster_means, static_argnums=3)(h, label, known, 4)
    np.testing.assert_allclose(found, [1.5, 0, 5, 0])


def test_balanced_clients_are_preferred_and_less_so_towards_the_end():
    updates = labelled(np.random.default_rng(1))
    config = HicsFl(clusters=3, temperature=0.003, annealing=1.5)
    policy, state = config.build(network()), learned(updates)
    layers = updates[:, PLACES]
    h = np.array([oracle.entropy(each[:, 0], 0.003) for each in layers])
    groups = oracle.clusters(oracle.distance(layers, h, 10.0), 3)

    def expected(round):
        taste = [1.5 * (1 - (round - 1) / 100) * h[group].mean() for group in groups]
        return chances(groups, taste, set(range(K)), M)

    for round, other in ((1, 51), (51, 100)):
        # Every draw clusters on the host, so there are fewer.
        members = drawn(policy.select, 1000, state, round, EVERYONE) > 0
        assert off(members, expected(round)).max() < 4.5
        # Negative control: another round's chances.
        assert off(members, expected(other)).max() > 6
        if round == 1:
            assert members[:, 4:].sum() > 3 * members[:, :4].sum()


def test_every_client_is_received_once_for_any_cohort_size():
    # The program leaves out the last K mod m.
    policy = compiled(3)
    state, seen = policy.init(), []
    for t in range(1, 4):
        selection, _ = policy.select(jax.random.key(t), state, np.asarray(t), EVERYONE)
        np.testing.assert_allclose(selection.weights, 1 / 3, rtol=1e-6)
        seen += [selection.clients.tolist()]
        update = np.ones((3, SIZE)) * (1.0 + np.asarray(selection.clients)[:, None])
        returned = observation(np.ones(3), update=update, received=[True, t != 1, True])
        state = policy.update(state, selection, returned)
        # The second of the first round was lost.
        known = set(itertools.chain(*seen[1:])) | {seen[0][0], seen[0][2]}
        assert set(np.flatnonzero(state.seen).tolist()) == known
    assert set(itertools.chain(*seen)) == set(range(K))
    # Who was not received is chosen again, and nobody else.
    assert sorted(seen[1] + seen[2]) == sorted(set(range(K)) - {seen[0][0], seen[0][2]})
    lost = observation(np.ones(3), update=update, received=[False] * 3)
    np.testing.assert_array_equal(policy.update(state, selection, lost).seen, state.seen)


def test_absent_clients_and_nonfinite_updates_are_ignored():
    updates = labelled(np.random.default_rng(2))
    updates[2] = np.nan
    updates[6, 3] = np.inf
    state, select = learned(updates), compiled().select
    for seed in range(20):
        available = np.random.default_rng(seed).random(K) < 0.4
        selection, _ = select(jax.random.key(seed), state, np.asarray(3), available)
        active = np.asarray(selection.clients)[np.asarray(selection.active)]
        assert available[active].all()
        assert len(set(active)) == min(M, available.sum())


def test_model_without_output_layer_is_refused():
    with pytest.raises(ConfigError, match=r"hics_fl: cannot find the output layer .*Name"):
        HicsFl().build(network()._replace(output_layer=None))
