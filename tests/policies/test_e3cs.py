"""E3CS against a slow oracle, and in the long run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import SimConfig, simulate
from pause_jax.bandit import no_info
from pause_jax.policies import E3cs, Random, Selection
from pause_jax.policies.choose import draw_clients, equal_weights
from pause_jax.policies.e3cs import allocated
from tests.reference import e3cs as oracle
from tests.support.network import context, drawn, jitted, observation, off, play

pytestmark = pytest.mark.slow

K, M, ROUNDS = 8, 3, 150
SIZES = [1, 2, 2, 3, 4, 5, 8, 9]
RELIABLE = np.array([0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 1.0, 1.0])
RNG = np.random.default_rng(0)
ARRIVED = RNG.random((ROUNDS, K)) < RELIABLE
CONFIG = E3cs(quota=0.3, rate=1.0)


@functools.cache
def policy():
    return jitted(CONFIG.build(context(SIZES, M)))


@functools.cache
def played():
    """A run in which clients return as often as they are reliable, and every tenth is short."""
    t = np.arange(1, ROUNDS + 1)
    available = RNG.random((ROUNDS, K)) < np.where(t % 10 == 0, 0.3, 0.85)[:, None]
    available[t - 1, t % K] = True

    def observe(t, selection):
        seen = observation(np.ones(M), received=ARRIVED[t - 1, selection.clients])
        return seen._replace(available=available[t - 1])

    return tuple(play(policy(), available, observe))


def replay():
    """The oracle before each round of our run, having learned from our choices."""
    slow = oracle.E3cs(K, M, CONFIG.quota, CONFIG.rate)
    for each in played():
        yield slow, each
        slow.update(each.available, each.chosen, ARRIVED[each.round - 1])


allocation = jax.jit(allocated, static_argnums=2)


def test_last_round_without_a_floor_updates_without_it():
    """Of 100 rounds the first 24 have no floor."""
    before = policy().init()._replace(round=np.int32(23))
    seen = observation(np.ones(M))._replace(available=np.ones(K, bool))
    cohort = Selection(np.arange(M), np.full(M, 1 / M, np.float32))
    late, without = (
        jax.jit(config.build(context(SIZES, M)).update)(before, cohort, seen).log_weight
        for config in (E3cs(quota=0.3, schedule="late"), E3cs(quota=0.0))
    )
    assert np.any(late != 0)
    np.testing.assert_array_equal(late, without)


def test_weights_and_probabilities_match_the_oracle():
    full, few = 0, 0
    for slow, each in replay():
        log_weight, size = each.state.log_weight, min(M, each.available.sum())
        np.testing.assert_allclose(log_weight, slow.log_weight, rtol=1e-4, atol=1e-5)
        p, over = slow.probabilities(each.available)
        np.testing.assert_allclose(
            allocation(log_weight, each.available, M, CONFIG.quota), p, atol=1e-5
        )
        np.testing.assert_allclose(p.sum(), size)
        assert len(each.chosen) == size
        assert set(np.flatnonzero(p == 1)) <= set(each.chosen) <= set(np.flatnonzero(p > 0))
        full, few = full + over.any(), few + (each.available.sum() <= M)
    # The run is not trivial: some clients reach 1, and in some rounds m are not there.
    assert full > 20
    assert few > 0


def test_draws_have_the_exact_probabilities_unlike_sequential_draws():
    p, each = [(slow.probabilities(each.available)[0], each) for slow, each in replay()][-2]
    ours = drawn(policy().select, 20_000, each.state, ROUNDS, each.available)
    assert off(ours > 0, p).max() < 4.5

    def in_proportion(key, p, round, available):
        return equal_weights(draw_clients(p, available, M, key), jnp.ones(M, bool)), no_info()

    # Negative control: the public copy draws in proportion to p without replacement.
    others = drawn(in_proportion, 20_000, p.astype(np.float32), 1, each.available)
    assert off(others > 0, p).max() > 10


def test_full_quota_is_uniform_and_late_schedule_waits_a_quarter():
    here = np.array([True] * 6 + [False] * 2)
    uneven = np.linspace(0.0, 9.0, K)
    np.testing.assert_allclose(allocation(uneven, here, M, 1.0), np.where(here, 0.5, 0), rtol=1e-6)
    # Without a floor the heaviest are always in, however light the others are.
    heavy = allocation(np.array([0.0, 500.0, 500.0, 0, 0, 0, 0, 0]), here, M, 0.0)
    np.testing.assert_allclose(heavy, [0.25, 1, 1, 0.25, 0.25, 0.25, 0, 0], rtol=1e-5)
    late = jax.jit(E3cs(quota=1.0, schedule="late")._quota, static_argnums=1)
    quotas = [float(late(np.asarray(t), 100)) for t in (1, 24, 25, 100)]
    assert quotas == [0, 0, 1, 1]


LONG = SimConfig(
    num_clients=20, num_selected=5, num_rounds=1500, learning=None, track_regret=False,
    deadline=0.12,
)  # fmt: skip


@pytest.mark.nightly
def test_returning_clients_are_preferred_and_the_floor_holds():
    def run(policy):
        record = ("in_time", "counts")
        result = simulate(LONG.replace(policy=policy), jax.random.key(0), record=record)
        arrived = np.asarray(result.in_time)[500:].mean()
        return arrived, np.asarray(result.counts) / LONG.num_rounds

    random, _ = run(Random())
    greedy, rare = run(E3cs(quota=0.0))
    fair, often = run(E3cs(quota=0.5))
    assert greedy > 1.3 * random
    assert random < fair < greedy
    floor = 0.5 * 5 / 20
    assert often.min() > floor - 4 * (floor / LONG.num_rounds) ** 0.5
    assert rare.min() < floor / 2
