"""Speed turns against a slow oracle, and what they learn."""

import jax
import numpy as np
import pytest

from pause_jax import SimConfig, simulate
from pause_jax.policies import Random, SpeedTurns
from pause_jax.world.latency import TwoGroups
from tests.support.network import context, jitted, observation, play

pytestmark = pytest.mark.slow

K, M = 7, 3
MIN_LATENCY = 0.05


class Turns:
    """Slow oracle: the due clients by UCB, then those of the next cycle."""

    def __init__(self):
        self.times, self.due = np.zeros(K), set(range(K))
        self.speeds: list[list[float]] = [[] for _ in range(K)]

    def ucb(self, t):
        bonus = np.sqrt((M + 1) * np.log(t) / np.maximum(self.times, 1))
        means = np.array([np.mean(each) if each else np.inf for each in self.speeds])
        return means + np.where(self.times > 0, bonus, 0)

    def rank(self, t, available):
        """Sort keys of the available clients, best first."""
        bound = self.ucb(t)
        return sorted((k not in self.due, -bound[k]) for k in np.flatnonzero(available))

    def update(self, cohort, latencies):
        ahead = {k for k in cohort if k not in self.due}
        self.due = set(range(K)) - ahead if ahead else self.due - set(cohort)
        for k, latency in zip(cohort, latencies, strict=True):
            self.times[k] += 1
            self.speeds[k].append(MIN_LATENCY / latency)


def test_every_cohort_is_that_of_the_oracle():
    policy, slow, rng = SpeedTurns().build(context([1.0] * K, M)), Turns(), np.random.default_rng(0)
    available = rng.random((40, K)) < 0.7
    available[:, :M] = True
    latency = rng.uniform(MIN_LATENCY, 1.2, (40, M))
    for each in play(jitted(policy), available, lambda t, _: observation(latency[t - 1])):
        bound = slow.ucb(each.round)
        chosen = sorted((k not in slow.due, -bound[k]) for k in each.chosen)
        expected = slow.rank(each.round, each.available)[:M]
        np.testing.assert_allclose(chosen, expected, rtol=1e-4)
        slow.update(each.chosen, each.seen.latency.tolist())


def played(policy):
    config = SimConfig(
        num_clients=20, num_selected=5, num_rounds=400, policy=policy, latency=TwoGroups(),
        learning=None, track_regret=False,
    )  # fmt: skip
    return np.asarray(simulate(config, jax.random.key(0), record=("clients",)).clients)


def test_each_client_takes_part_once_per_cycle_with_its_speed_group():
    clients = played(SpeedTurns())
    for cycle in clients.reshape(-1, 20):
        assert sorted(cycle.tolist()) == list(range(20))
    # Clients 0 to 9 are the fast group. Late cohorts do not mix the groups.
    mixed = [0 < np.sum(cohort < 10) < 5 for cohort in clients[-100:]]
    assert np.mean(mixed) == 0
    assert np.mean([0 < np.sum(c < 10) < 5 for c in played(Random())[-100:]]) > 0.8
