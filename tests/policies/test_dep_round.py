"""Cohorts of fixed size with given probabilities, against their oracles."""

import functools
import itertools

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pause_jax.policies.choose import dep_round, draw_clients, inclusion_probabilities
from tests.reference import inclusion as oracle
from tests.support.network import off

P = np.array([0.9, 0.1, 0.55, 0.25, 1.0, 0.2, 0.0])
M, DRAWS = 3, 30_000
inclusion = jax.jit(inclusion_probabilities)


@functools.partial(jax.jit, static_argnums=(1, 3))
def often(probability, m, keys, draw):
    return jax.vmap(lambda key: draw(probability, m, key))(keys)


def cohorts(probability, m, draws=DRAWS, draw=dep_round):
    """Clients in each of many draws, bool [draws, K]."""
    keys = jax.random.split(jax.random.key(0), draws)
    clients = np.asarray(often(np.asarray(probability, np.float32), m, keys, draw))
    members = np.zeros((draws, len(probability)), int)
    np.add.at(members, (np.arange(draws)[:, None], clients), 1)
    return members


def test_draws_match_inclusion_probabilities_and_pairs_repel():
    members = cohorts(P, M)
    assert off(members, P).max() < 4.5
    np.testing.assert_array_equal(members.sum(axis=1), M)
    assert members.max() == 1
    # Negative control: draws in proportion to P, one after the other, have other probabilities.
    proportional = cohorts(P, M, draw=lambda p, m, key: draw_clients(p, p >= 0, m, key))
    assert off(proportional, P).max() > 20
    rng = np.random.default_rng(0)
    slow = np.zeros((10_000, len(P)), int)
    for row in slow:
        row[oracle.dep_round(P, rng)] = 1
    assert off(slow, P).max() < 4.5
    for i, j in itertools.combinations(range(len(P)), 2):
        both = (members[:, i] & members[:, j]).mean()
        assert both <= P[i] * P[j] + 4.5 * (P[i] * P[j] / DRAWS) ** 0.5
        # The pairs of the oracle are random too: its joint probabilities are ours.
        expected = (slow[:, i] & slow[:, j]).mean()
        assert abs(both - expected) < 0.02
    # Without the random order, neighbours would never meet.
    assert (members[:, 5] & members[:, 1]).any()


def test_rounding_of_probabilities_does_not_change_the_draw():
    halves = np.full(8, 0.5)
    nudged = halves + 1e-7 * np.asarray([1, -1, 1, -1, 2, -2, 1, -1])
    others = halves + np.array([0.3, -0.3, 0.2, -0.2, 0.0, 0.0, 0.1, -0.1])
    one, other, moved = (cohorts(p, 4, draws=2000) for p in (halves, nudged, others))
    assert (one != other).any(axis=1).mean() < 0.01
    assert (one != moved).any(axis=1).mean() > 0.1, "negative control: other probabilities"


def test_clients_with_probability_come_before_fillers():
    p = np.array([1.0, 0.0, 0.5, 0.5, 0.0], np.float32)
    keys = jax.random.split(jax.random.key(0), 20)
    for clients in np.asarray(often(p, 4, keys, dep_round)):
        assert len(set(clients.tolist())) == 4
        assert set(clients[:2].tolist()) in ({0, 2}, {0, 3})


def test_small_probabilities_of_many_clients_are_exact():
    weight = np.arange(1.0, 601.0)
    p = np.asarray(inclusion(weight, weight > 0, 16.0))
    members = cohorts(p, 16, draws=2000)
    np.testing.assert_array_equal(members.sum(axis=1), 16)
    assert off(members, p).max() < 4.5
    # Of each hundred neighbours together.
    got, expected = (each.reshape(6, 100).sum(axis=1) for each in (members.sum(axis=0), 2000 * p))
    assert (np.abs(got - expected) < 4.5 * np.sqrt(expected)).all()


WEIGHTS = st.lists(st.floats(0.01, 50), min_size=5, max_size=5)


@settings(deadline=None)
@given(WEIGHTS, st.lists(st.booleans(), min_size=5, max_size=5), st.floats(0.1, 5))
def test_allocation_matches_the_oracle(weight, among, total):
    total = min(total, float(sum(among)))
    got = np.asarray(inclusion(np.array(weight), np.array(among), total))
    np.testing.assert_allclose(got, oracle.allocation(weight, among, total), atol=2e-5)
    np.testing.assert_allclose(got.sum(), total, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(inclusion(np.array(weight), np.array(among), 9.0), among)
