"""Pure functions give the same compiled or not, from host or device: what the oracles say."""

import chex
import jax.numpy as jnp
import numpy as np

from pause_jax.bandit import ClientStats, empty_stats, ucb_index, update_stats
from pause_jax.bandit.reward import generalization_reward
from pause_jax.bandit.search import exact
from tests.reference import oracles

every_way = chex.variants(with_jit=True, without_jit=True, with_device=True)
K, M, ROUND = 6, 3, 17
COUNTS = np.asarray([0, 1, 2, 5, 16, 0], np.int32)
MEAN = np.asarray([0.0, 1.0, 0.3, 0.05, 0.61, 0.0], np.float32)


class PureFunctions(chex.TestCase):
    @every_way
    def test_ucb_index(self):
        index = self.variant(ucb_index, static_argnums=2)(ClientStats(COUNTS, MEAN), ROUND, M)
        expected = oracles.ucb(COUNTS.tolist(), MEAN.tolist(), ROUND, M, 1.0)
        np.testing.assert_allclose(index, expected, rtol=1e-6)

    @every_way
    def test_update_stats(self):
        update = self.variant(update_stats)
        rng = np.random.default_rng(0)
        stats, counts, mean = empty_stats(K), [0] * K, [0.0] * K
        for _ in range(5):
            clients = rng.choice(K, M, replace=False)
            speed, active = rng.uniform(0.01, 1, M).astype(np.float32), rng.random(M) < 0.7
            stats = update(stats, jnp.asarray(clients), speed, active)
            counts, mean = oracles.update(counts, mean, clients, speed, active)
        np.testing.assert_array_equal(stats.counts, counts)
        np.testing.assert_allclose(stats.mean_speed, mean, rtol=2e-6)

    @every_way
    def test_generalization_reward(self):
        size, quality = [5, 1, 9, 3, 20, 2], [1.0, 0.5, 1.0, 0.25, 0.75, 1.0]
        weight = np.asarray(size) * np.asarray(quality)
        share = jnp.asarray(weight / weight.sum(), jnp.float32)
        reward = self.variant(generalization_reward, static_argnums=3)
        for exponent in (0.5, 1.0, 2.0):
            g = reward(jnp.asarray(COUNTS), ROUND, share, M, exponent)
            expected = oracles.generalization(COUNTS, ROUND, size, quality, M, exponent)
            np.testing.assert_allclose(g, expected, rtol=1e-4, atol=1e-5)

    @every_way
    def test_exact_search(self):
        index = np.asarray([6.0, 5.0, 3.0, 0.0, -1.0, -1.0], np.float32)
        weight = np.asarray([0.0, 1.5, 3.0, 4.0, 0.0, 0.0], np.float32)
        clients, energy = self.variant(exact, static_argnums=2)(index, weight, 2)
        chex.assert_type([clients, energy], [jnp.int32, jnp.float32])
        assert (clients.tolist(), float(energy)) == ([1, 2], 7.5)
        assert tuple(clients.tolist()) in oracles.best_sets(index, weight, 2)
