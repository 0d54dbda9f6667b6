"""Polaris against a slow oracle and a general solver, against errors, and at its limits."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pause_jax.policies import Polaris
from pause_jax.policies.polaris import optimal_chances
from tests.reference import polaris as oracle
from tests.reference.power_of_choice import inclusion
from tests.support.network import context, drawn, jitted, observation, off, play

pytestmark = pytest.mark.slow

K, M, ROUNDS, SIZE = 6, 2, 40, 5
SIZES = np.array([1, 2, 2, 3, 5, 8])
CONFIG = Polaris(size_weight=0.5, staleness_weight=3.0, optimism=4.0)
chances = jax.jit(optimal_chances)
POSITIVE = st.lists(st.floats(0.05, 20), min_size=K, max_size=K)


@settings(deadline=None, max_examples=40)
@given(POSITIVE, POSITIVE, st.lists(st.booleans(), min_size=K, max_size=K))
def test_closed_form_matches_a_solver(size, stale, among):
    among[0] = True
    here = np.flatnonzero(among)
    size, stale = np.array(size), np.array(stale)
    q = np.asarray(chances(size, stale, np.array(among)))
    np.testing.assert_allclose(q.sum(), 1, rtol=1e-5)
    np.testing.assert_array_equal(q > 0, among)
    np.testing.assert_allclose(q[here], oracle.chances(size[here], stale[here]), atol=2e-3)
    # The multiplier is the same for all: size / q^2 - stale.
    slope = size[here] / q[here].astype(float) ** 2 - stale[here]
    np.testing.assert_allclose(slope, slope.mean(), rtol=2e-3)


def test_published_constraint_gives_different_probabilities():
    size, stale = np.array([4.0, 1.0, 1.0, 0.25]), np.array([0.1, 0.1, 5.0, 0.1])
    right, wrong = oracle.chances(size, stale), oracle.chances(size, stale, in_logs=True)
    assert np.abs(right - wrong).max() > 0.1
    ours = chances(size, stale, np.ones(4, bool))
    np.testing.assert_allclose(ours, right, atol=1e-3)


def test_limits():
    every, size = np.ones(4, bool), np.array([9.0, 4.0, 1.0, 1.0])
    # Without staleness: in proportion to the norms.
    found = chances(size, 0 * size, every)
    np.testing.assert_allclose(found, np.array([3, 2, 1, 1]) / 7, rtol=1e-5)
    nobody = chances(size, size, ~every)
    np.testing.assert_array_equal(nobody, 0)
    one = chances(size, size, np.arange(4) == 3)
    np.testing.assert_allclose(one, [0, 0, 0, 1], rtol=1e-6)
    # Very different clients: still a distribution.
    wide = chances(np.logspace(-12, 12, 1000), np.logspace(8, -8, 1000), np.ones(1000, bool))
    np.testing.assert_allclose(np.asarray(wide).sum(), 1, rtol=1e-4)


@functools.cache
def policy():
    return jitted(CONFIG.build(context(SIZES, M, update_size=SIZE)))


@functools.cache
def played():
    """A run in which updates are received, late or lost."""
    rng, t = np.random.default_rng(0), np.arange(1, ROUNDS + 1)
    available = rng.random((ROUNDS, K)) < 0.7
    available[t - 1, t % K] = True

    def observe(t, selection):
        fate = rng.random(M)
        received, late = fate < 0.6, (fate >= 0.6) & (fate < 0.85)
        updates = rng.normal(size=(M, SIZE)) * (1 + selection.clients[:, None]) * received[:, None]
        return observation(np.ones(M), update=updates, received=received)._replace(late=late)

    return tuple(play(policy(), available, observe))


def replay():
    """(oracle, available, our state) before each round."""
    slow = oracle.Polaris(SIZES, CONFIG.optimism)
    for each in played():
        yield slow, each.available, each.state
        (clients, _), active, seen = each.selection, each.selection.active, each.seen
        updates = {clients[i]: seen.update[i] for i in np.flatnonzero(active & seen.received)}
        slow.update(updates, clients[active & seen.late])


def test_state_matches_the_oracle():
    seen = set()
    for slow, _, state in replay():
        np.testing.assert_allclose(state.bound, slow.bound, rtol=1e-4)
        np.testing.assert_allclose(state.staleness, slow.staleness, rtol=1e-5)
        assert np.flatnonzero(~np.asarray(state.explored)).tolist() == sorted(slow.unexplored)
        seen |= set(np.round(slow.staleness, 2))
    assert seen == {0.01, 0.1, 1.1}


def test_cohorts_are_drawn_with_these_probabilities():
    *_, (_, available, state) = replay()
    size, stale = (np.asarray(x) for x in (state.bound, state.staleness))
    share = SIZES / SIZES.sum()
    a = CONFIG.size_weight * share**2 * size**2
    b = CONFIG.staleness_weight * share**2 * stale**2 * size
    here = np.flatnonzero(available)
    expected = np.zeros(K)
    expected[here] = inclusion(oracle.chances(a[here], b[here]), M)
    members = drawn(policy().select, 20_000, state, 1, available) > 0
    assert off(members, expected).max() < 4.5
    # Negative control: uniform draws.
    assert off(members, np.where(available, M / len(here), 0)).max() > 10
