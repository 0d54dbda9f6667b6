"""Mixture: the derivative of the long-run reward, cohorts by enumeration, and what it earns."""

import itertools

import jax
import numpy as np
import pytest

from experiments.best_mixture import run as best_mixture
from experiments.common import regret_setting
from pause_jax import simulate
from pause_jax.bandit.reward import Reward, marginal_generalization
from pause_jax.policies import Genie, Mixture
from tests.support.network import context, observation

pytestmark = pytest.mark.slow

K, M = 6, 2


def slow_derivative(rate, share, beta):
    """Smallest derivative of s g(s) at rates up to ``rate``, by differences on a grid."""
    grid = np.linspace(0, rate, 20_001)
    x = M * share - grid
    earned = grid * np.sign(x) * np.abs(x) ** beta
    return np.min(np.diff(earned) / np.diff(grid))


@pytest.mark.parametrize("beta", [1.0, 1.2, 2.0, 3.0])
def test_marginal_generalization_is_the_smallest_derivative_so_far(beta):
    rounds = 1000
    share = np.array([0.05, 0.1, 0.15, 0.2, 0.2, 0.3], np.float32)
    for counts in ([1, 20, 80, 200, 390, 590], [90, 205, 400, 410, 600, 900]):
        found = marginal_generalization(np.array(counts), rounds, share, M, beta)
        expected = [
            slow_derivative(n / rounds, s, beta) for n, s in zip(counts, share, strict=True)
        ]
        np.testing.assert_allclose(found, expected, atol=2e-3)


def test_marginal_generalization_is_finite_for_any_exponent():
    counts, share = np.arange(0, 60, 10), np.full(6, 1 / 6, np.float32)
    for beta in (0.2, 0.5, 1.0, 5.0):
        for rounds in (60, 90, 120, 150):  # several rates equal the fair share
            assert np.isfinite(marginal_generalization(counts, rounds, share, M, beta)).all()


def test_every_cohort_maximises_index_plus_marginal_reward():
    reward = Reward(alpha=3.0, beta=1.2, gamma=0.0)
    sizes = np.array([1.0, 1, 2, 2, 3, 4])
    policy = Mixture().build(context(sizes, M, reward=reward))
    select, update = jax.jit(policy.select), jax.jit(policy.update)
    state, rng = policy.init(), np.random.default_rng(0)
    times, total = np.zeros(K), np.zeros(K)
    for t in range(1, 31):
        selection, _ = select(jax.random.key(t), state, np.asarray(t), np.ones(K, bool))
        cohort = tuple(np.asarray(selection.clients).tolist())
        if times.min() > 0:
            bound = total / times + np.sqrt((M + 1) * np.log(t) / times)
            gain = marginal_generalization(
                times, t, (sizes / sizes.sum()).astype(np.float32), M, 1.2
            )
            weight = 3.0 / M * np.asarray(gain)
            energy = {
                pair: min(bound[list(pair)]) + sum(weight[list(pair)])
                for pair in itertools.combinations(range(K), M)
            }
            assert energy[cohort] == pytest.approx(max(energy.values()), rel=1e-5)
        latency = rng.uniform(0.05, 1.0, M).astype(np.float32)
        state = update(state, selection, observation(latency))
        times[list(cohort)] += 1
        total[list(cohort)] += 0.05 / latency


@pytest.mark.nightly
def test_mixture_earns_the_reward_of_the_best_mixture_and_the_genie_does_not():
    rounds = 3000
    best = best_mixture.best_of_blocks().rate
    earned = {}
    for policy in (Mixture(), Genie()):
        config = regret_setting.config(policy, rounds)
        clients = simulate(config, jax.random.key(0), record=("clients",)).clients
        earned[policy.name] = best_mixture.earned(np.asarray(clients))[rounds // 3 :].mean()
    assert earned["mixture"] > 0.98 * best
    assert earned["genie"] < 0.94 * best
