"""F3AST against a slow oracle, against errors, and what it promises in the long run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.policies import F3ast, Random
from tests.reference import f3ast as oracle
from tests.reference.inclusion import allocation
from tests.support.network import context, drawn, observation, off

pytestmark = pytest.mark.slow

K, M, ROUNDS, LONG = 7, 3, 120, 5000
SIZES = (1, 2, 3, 5, 8, 13, 4)
CONFIG = F3ast(forgetting=0.07)


@functools.partial(jax.jit, static_argnames=("sizes", "m"))
def whole(policy, available, sizes=SIZES, m=M):
    """Rounds of a run, one per mask: (weight of each client, state before)."""
    built = policy.build(context(sizes, m))

    def play(state, here):
        t, available = here
        selection, _ = built.select(jax.random.fold_in(jax.random.key(0), t), state, t, available)
        weight = jnp.zeros(len(sizes)).at[selection.clients].set(selection.weights)
        return built.update(state, selection, observation(np.ones(m))), (weight, state)

    rounds = 1 + jnp.arange(available.shape[0])
    return jax.lax.scan(play, built.init(), (rounds, available))[1]


def masks(rounds, probability, num_clients=K):
    return np.random.default_rng(0).random((rounds, num_clients)) < np.asarray(probability)


def replay():
    """(oracle, available, our weights, our rates before, our cohort) of each round."""
    slow, available = oracle.F3ast(SIZES, M, CONFIG.forgetting), masks(ROUNDS, 0.6)
    played = jax.device_get(whole(CONFIG, available))
    for here, weight, rate in zip(available, *played, strict=True):
        yield slow, here, weight, rate, np.flatnonzero(weight > 0).tolist()


def test_a_lost_update_counts_as_participation():
    policy = CONFIG.build(context(SIZES, M))
    selection, _ = policy.select(jax.random.key(0), policy.init(), 1, np.ones(K, bool))
    rates = [
        policy.update(policy.init(), selection, observation(np.ones(M), received=received))
        for received in (np.ones(M, bool), np.zeros(M, bool))
    ]
    np.testing.assert_array_equal(*rates)


def test_rates_cohorts_and_weights_match_the_oracle():
    sizes = set()
    for slow, available, weight, rate, chosen in replay():
        np.testing.assert_allclose(rate, slow.rate, rtol=1e-4)
        rank = slow.rank()
        assert len(chosen) == min(M, available.sum())
        left = np.setdiff1d(np.flatnonzero(available), chosen)
        if chosen and len(left):
            assert rank[chosen].min() >= rank[left].max() * (1 - 1e-4)
        np.testing.assert_allclose(weight[chosen], slow.step(chosen), rtol=1e-4)
        sizes.add(len(chosen))
    assert sizes >= {M - 1, M}


def test_first_round_is_uniform():
    policy = CONFIG.build(context(SIZES, M))
    members = drawn(policy.select, 7000, policy.init(), 1, np.ones(K, bool)) > 0
    assert off(members, np.full(K, M / K)).max() < 4.5


def bias(weight, sizes=SIZES):
    """How far the mean weights are from the shares of the data, in all."""
    return np.abs(weight[1000:].mean(axis=0) - np.asarray(sizes) / np.sum(sizes)).sum()


def test_average_is_unbiased_with_intermittent_clients():
    sizes = (1, 2, 3, 5, 8) * 4
    available = masks(LONG, (0.9, 0.3, 0.6, 0.4, 0.95) * 4, len(sizes))
    ours, random = (
        np.asarray(whole(policy, available, sizes, 5)[0]) for policy in (F3ast(), Random())
    )
    assert bias(ours, sizes) < 0.02
    # Negative control: FedAvg's weights among random available clients favour the present.
    assert bias(random, sizes) > 0.2


def test_unscaled_weights_are_unbiased_with_too_few_clients():
    available = masks(LONG, (0.9, 0.8, 0.3, 0.6, 0.5, 0.4, 0.95))
    weight, rate = jax.device_get(whole(F3ast(), available))
    chosen = weight > 0
    later = rate + 0.01 * (chosen - rate)
    assert bias(chosen * np.divide(SIZES, sum(SIZES)) / later) < 0.02
    assert bias(weight) > 0.1


def test_participation_is_proportional_to_data_without_absences():
    weight = np.asarray(whole(F3ast(), masks(LONG, 1.0))[0])
    rate = (weight[1000:] > 0).mean(axis=0)
    # Those of more than 1/m of the data are in every round, and the others share the rest.
    np.testing.assert_allclose(rate, allocation(SIZES, [True] * K, M), atol=0.02)
