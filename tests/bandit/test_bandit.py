import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.bandit import ClientStats, empty_stats, store_active, ucb_index, update_stats
from tests.reference import oracles

K, M, ROUNDS = 6, 3, 40


def play(num_rounds=ROUNDS, seed=0):
    rng = np.random.default_rng(seed)
    clients = np.stack([rng.choice(K, M, replace=False) for _ in range(num_rounds)])
    speed = rng.uniform(0.01, 1.0, (num_rounds, M)).astype(np.float32)
    active = rng.random((num_rounds, M)) < 0.7
    return clients, speed, active


updated = jax.jit(update_stats)
stored_active = jax.jit(store_active)


@pytest.mark.parametrize("with_empty_slots", [False, True])
def test_update_follows_the_recursion(with_empty_slots):
    clients, speed, active = play()
    active = active if with_empty_slots else np.ones_like(active)
    stats = empty_stats(K)
    assert jnp.issubdtype(stats.counts.dtype, jnp.integer)
    counts, mean_speed = [0] * K, [0.0] * K
    for t in range(ROUNDS):
        stats = updated(stats, clients[t], speed[t], active[t])
        counts, mean_speed = oracles.update(counts, mean_speed, clients[t], speed[t], active[t])
        np.testing.assert_array_equal(stats.counts, counts)
        np.testing.assert_allclose(stats.mean_speed, mean_speed, rtol=2e-6)
    assert sum(counts) == active.sum()


def test_empty_slot_ignores_even_a_nan_observation():
    before = ClientStats(np.int32([3, 0, 1, 0, 0, 0]), np.float32([0.5, 0, 0.25, 0, 0, 0]))
    speed = np.float32([np.nan, np.inf, np.nan])
    after = updated(before, np.array([0, 1, 2]), speed, np.zeros(M, bool))
    np.testing.assert_array_equal(after.counts, before.counts)
    np.testing.assert_array_equal(after.mean_speed, before.mean_speed)


def test_order_of_the_cohort_does_not_matter():
    clients, speed = np.array([4, 1, 3]), np.array([0.2, 0.9, 0.4], np.float32)
    there = updated(empty_stats(K), clients, speed)
    back = updated(empty_stats(K), clients[::-1], speed[::-1])
    np.testing.assert_array_equal(there.mean_speed, back.mean_speed)


def test_mean_stays_accurate_over_many_observations():
    speed = np.random.default_rng(1).uniform(0.4, 0.6, 20_000).astype(np.float32)

    def body(stats, s):
        return update_stats(stats, jnp.array([0]), s[None]), None

    stats = jax.lax.scan(body, empty_stats(1), speed)[0]
    np.testing.assert_allclose(stats.mean_speed, [speed.mean(dtype=np.float64)], rtol=1e-5)


@pytest.mark.parametrize("round_number", [1, 2, 17, 1000])
@pytest.mark.parametrize("speed_weight", [1.0, 3.0])
def test_ucb_matches_oracle(round_number, speed_weight):
    counts = [0, 1, 2, 5, 100, 0]
    mean_speed = [0.0, 1.0, 0.3, 0.05, 0.61, 0.0]
    stats = ClientStats(jnp.array(counts), jnp.array(mean_speed))
    index = ucb_index(stats, round_number, M, speed_weight=speed_weight)
    expected = oracles.ucb(counts, mean_speed, round_number, M, speed_weight)
    np.testing.assert_allclose(index, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.isposinf(index), np.array(counts) == 0)


@pytest.mark.parametrize("row", [(), (2,), (2, 3)])
def test_only_participants_get_a_new_row(row):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(K, *row)).astype(np.float32)
    values = rng.normal(size=(M, *row)).astype(np.float32)
    clients, active = np.array([4, 0, 3]), np.array([True, False, True])
    expected = table.copy()
    expected[[4, 3]] = values[[0, 2]]
    np.testing.assert_array_equal(stored_active(table, clients, values, active), expected)
    expected[[4, 3]] = 7  # a scalar, for all participants
    np.testing.assert_array_equal(stored_active(table, clients, 7, active), expected)
