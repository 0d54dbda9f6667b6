"""TiFL against a plain oracle: tiers, probabilities, credits, reports."""

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, simulate
from pause_jax.policies import Answer, Tifl
from tests.reference import tifl as oracle
from tests.support.network import context, drawn, jitted, observation, off, play

pytestmark = pytest.mark.slow

K, M, TIERS, ROUNDS = 13, 2, 4, 80
SIZES = np.arange(1, K + 1)
LATENCY = np.random.default_rng(3).permutation(K).astype(np.float32)
NETWORK = context(SIZES, M, expected_latency=LATENCY, num_rounds=ROUNDS)
CONFIG = Tifl(tiers=TIERS, interval=2, credits=1.2)


def test_cohorts_match_the_oracle_until_credits_run_out():
    rng = np.random.default_rng(0)
    losses = rng.uniform(0.5, 2.0, (ROUNDS + 1, K)).astype(np.float32)
    losses[:, LATENCY > 9] += 1.0  # the slowest tier learns least
    losses[20:30] = 1.0  # tied
    available = rng.random((ROUNDS, K)) < 0.6
    available[0] = LATENCY > 3  # the fastest tier is absent at the first check
    slow = oracle.Tifl(LATENCY, SIZES, TIERS, credits=24)
    sizes, weighted, exhausted = set(), 0, 0
    policy = jitted(CONFIG.build(NETWORK))

    def answer(t, clients):
        heard = available[t - 1][clients] & (clients != 5)
        return Answer(losses[t, clients], np.ones((K, 1), np.float32), heard)

    for each in play(policy, available, lambda *_: observation(np.ones(M)), answer):
        asks = each.round % 2 == 1
        np.testing.assert_array_equal(each.asked, each.available & asks)
        if asks:
            slow.check(losses[each.round], each.available & (np.arange(K) != 5))
        expected = slow.probabilities(each.available)
        tiers = [i for i, group in enumerate(slow.groups) if set(each.chosen) <= set(group)]
        assert len(tiers) == 1
        assert expected[tiers[0]] > 0
        group = [k for k in slow.groups[tiers[0]] if each.available[k]]
        assert len(each.chosen) == min(M, len(group))
        weights = each.selection.weights[each.selection.active]
        np.testing.assert_allclose(weights, SIZES[each.chosen] / SIZES[each.chosen].sum())
        if each.round in (1, 26, 40, 70):
            members = drawn(policy.select, 4000, each.state, each.round, each.available) > 0
            frequency = np.stack([members[:, group].any(axis=1) for group in slow.groups], axis=1)
            assert off(frequency, expected).max() < 4.5
            weighted += off(frequency, (expected > 0) / (expected > 0).sum()).max() > 10
        slow.choose(tiers[0])
        sizes.add(len(each.chosen))
        exhausted += min(slow.credits) <= 0
    assert sizes == {1, 2}
    assert weighted >= 1
    assert exhausted > 0


def test_tier_without_credits_is_chosen_only_if_no_other_is_present():
    select = jax.jit(CONFIG.build(NETWORK).select)
    state = CONFIG.build(NETWORK).init()
    spent = state._replace(credits=np.array([0, 24, 24, 24]))
    fast = np.argsort(LATENCY)[:4]  # 13 clients: tiers of 4, 3, 3 and 3
    for key in jax.random.split(jax.random.key(0), 50):
        chosen = select(key, spent, 1, np.ones(K, bool))[0].clients
        assert not np.isin(chosen, fast).any()
    only = np.isin(np.arange(K), fast)
    assert np.isin(select(key, spent, 1, only)[0].clients, fast).all()


def test_reports_lengthen_every_tenth_round():
    config = SimConfig(num_clients=10, num_selected=2, num_rounds=12, policy=Tifl(), learning=None)
    record = ("queried", "query_seconds")
    result = simulate(config.replace(track_regret=False), jax.random.key(0), record=record)
    np.testing.assert_array_equal(result.queried, 2)
    np.testing.assert_array_equal(np.flatnonzero(result.query_seconds), [0, 10])


def test_more_tiers_than_clients_are_refused():
    with pytest.raises(ConfigError, match=r"policy\.tiers = 20: must be <= num_clients = 10"):
        simulate(SimConfig(num_clients=10, policy=Tifl(tiers=20)), jax.random.key(0))
