"""CS-UCB and CS-UCB-Q against slow oracles, and against published errors."""

import functools

import jax
import numpy as np
import pytest

from pause_jax import SimConfig, simulate
from pause_jax.policies import CsUcb, CsUcbQ
from tests.reference import policies as oracle
from tests.support.network import context, jitted, observation, play

pytestmark = pytest.mark.slow

K, M, ROUNDS = 7, 3, 60
SIZES = [1, 2, 2, 3, 4, 5, 8]
PLAIN, FAIR = CsUcb(max_latency=0.9), CsUcbQ(queue_weight=0.4, fairness=0.7)


@functools.cache
def played(config):
    """A run in which each client has about the same latency in all rounds."""
    rng = np.random.default_rng(2)
    mean_latency = rng.uniform(0.1, 1.0, K)

    def observe(t, selection):
        latency = np.clip(mean_latency + rng.normal(0, 0.05, K), 0.05, 1.2)
        return observation(latency[selection.clients])

    policy = jitted(config.build(context(SIZES, M)))
    return tuple(play(policy, rng.random((ROUNDS, K)) < 0.7, observe))


def replay(config):
    """(round, oracle, its scores) of our run, from which the oracle learns."""
    slow = oracle.CsUcb(K, M, max_latency=0.9)
    if config == FAIR:
        slow = oracle.CsUcbQ(SIZES, M, beta=0.4, phi=0.7)
    for each in played(config):
        yield each, slow, np.array(slow.scores(each.round))
        slow.update(each.chosen, each.seen.latency[each.selection.active].tolist())


@pytest.mark.parametrize("config", [PLAIN, FAIR], ids=["cs_ucb", "cs_ucb_q"])
def test_every_cohort_is_optimal_for_the_oracle(config):
    for each, _, scores in replay(config):
        scores[~each.available] = -np.inf
        assert len(each.chosen) == min(M, each.available.sum())
        # Ties may go either way; the scores of the chosen may not.
        best = np.sort(scores)[::-1][: len(each.chosen)]
        np.testing.assert_allclose(np.sort(scores[each.chosen])[::-1], best, rtol=1e-4)


@pytest.mark.nightly
def test_participation_stays_above_the_target_in_the_long_run():
    config = SimConfig(
        num_clients=20, num_selected=5, num_rounds=3000, learning=None, track_regret=False
    )
    fair, greedy = (
        simulate(config.replace(policy=policy), jax.random.key(0), record=("counts",))
        for policy in (CsUcbQ(fairness=0.8), CsUcb())
    )
    least = [np.asarray(run.counts).min() / 3000 for run in (fair, greedy)]
    target = 0.8 * 5 / 20
    assert least[0] >= target - 0.01
    assert least[1] < target - 0.01
