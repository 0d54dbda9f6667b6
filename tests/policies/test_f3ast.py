"""F3AST against a slow oracle, against errors, and what it promises in the long run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.policies import F3ast, Random
from tests.reference import f3ast as oracle
from tests.reference.inclusion import allocation
from tests.support.network import context, observation

pytestmark = pytest.mark.slow

K, M, ROUNDS = 7, 3, 120
SIZES = np.array([1, 2, 3, 5, 8, 13, 4])
CONFIG = F3ast(forgetting=0.07)


@functools.cache
def played(policy=CONFIG, sizes=tuple(SIZES), m=M, probability=0.6, rounds=ROUNDS):
    """(available [T, K], weight of each client [T, K], states before) of a run."""
    built, num_clients = policy.build(context(sizes, m)), len(sizes)

    def play(state, here):
        t, available = here
        key = jax.random.fold_in(jax.random.key(0), t)
        selection, _ = built.select(key, state, t, available)
        weight = jnp.zeros(num_clients).at[selection.clients].set(selection.weights)
        return built.update(state, selection, observation(np.ones(m))), (weight, state)

    available = np.random.default_rng(0).random((rounds, num_clients)) < np.asarray(probability)
    whole = jax.jit(lambda *each: jax.lax.scan(play, built.init(), each)[1])
    weight, states = whole(np.arange(1, rounds + 1), available)
    return available, np.asarray(weight), jax.tree.map(np.asarray, states)


def replay(bug=""):
    """(oracle, available, our weights, our rates before, our cohort) of each round."""
    slow = oracle.F3ast(SIZES, M, CONFIG.forgetting, bug)
    for available, weight, rate in zip(*played(), strict=True):
        yield slow, available, weight, rate, np.flatnonzero(weight > 0).tolist()


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


@pytest.mark.parametrize("bug", ["absent", "early", "variance"])
def test_oracle_mutants_are_detected(bug):
    other = 0
    for slow, available, weight, _, chosen in replay(bug):
        cohort = slow.choose(available)
        theirs = np.zeros(K)
        theirs[chosen] = slow.step(chosen)
        other += (
            set(cohort) != set(chosen) if bug != "early" else np.abs(theirs - weight).max() > 0.01
        )
    assert other > 5


def test_first_round_is_uniform():
    policy = CONFIG.build(context(SIZES, M))

    @jax.jit
    @jax.vmap
    def first(key):
        return policy.select(key, policy.init(), 1, jnp.ones(K, bool))[0].clients

    counts = np.bincount(np.asarray(first(jax.random.split(jax.random.key(0), 7000))).ravel())
    assert (np.abs(counts - 3000) < 4.5 * (7000 * 3 / 7 * 4 / 7) ** 0.5).all()


LONG = {"rounds": 5000, "probability": (0.9, 0.8, 0.3, 0.6, 0.5, 0.4, 0.95)}


def bias(weight, sizes):
    """How far the mean weights are from the shares of the data, in all."""
    return np.abs(weight[1000:].mean(axis=0) - np.asarray(sizes) / np.sum(sizes)).sum()


def test_average_is_unbiased_with_intermittent_clients():
    sizes, probability = (1, 2, 3, 5, 8) * 4, (0.9, 0.3, 0.6, 0.4, 0.95) * 4
    many = {"rounds": 5000, "sizes": sizes, "m": 5, "probability": probability}
    _, weight, _ = played(F3ast(), **many)
    assert bias(weight, sizes) < 0.02
    # Negative control: FedAvg's weights among random available clients favour the present.
    _, weight, _ = played(Random(), **many)
    assert bias(weight, sizes) > 0.2


def test_unscaled_weights_are_unbiased_with_too_few_clients():
    _, weight, rate = played(F3ast(), **LONG)
    chosen = weight > 0
    later = rate + 0.01 * (chosen - rate)
    assert bias(chosen * SIZES / SIZES.sum() / later, SIZES) < 0.02
    assert bias(weight, SIZES) > 0.1


def test_participation_is_proportional_to_data_without_absences():
    _, weight, _ = played(F3ast(), probability=1.0, rounds=4000)
    rate = (weight[1000:] > 0).mean(axis=0)
    # Those of more than 1/m of the data are in every round, and the others share the rest.
    np.testing.assert_allclose(rate, allocation(SIZES, [True] * K, M), atol=0.02)
