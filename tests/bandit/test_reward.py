import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pause_jax.bandit.reward import (
    Reward,
    cohort_problem,
    cohort_value,
    generalization_reward,
    problem_of,
)
from tests.reference import oracles

K, M = 6, 2
jitted_g = jax.jit(generalization_reward, static_argnums=3)


def shares(data_size, quality):
    weight = np.asarray(data_size, float) * np.asarray(quality, float)
    return np.float32(weight / weight.sum())


def signed_root(values, exponent):
    values = np.asarray(values, float)
    return np.sign(values) * np.abs(values) ** (1 / exponent)


@given(
    counts=arrays(np.int32, K, elements=st.integers(0, 50)),
    data_size=arrays(np.int32, K, elements=st.integers(1, 400)),
    quality=arrays(np.float64, K, elements=st.floats(0.25, 1.0)),
    extra=st.integers(0, 100),
    exponent=st.sampled_from([0.1, 0.5, 1.0, 1.2, 2.0, 3.0, 5.0]),
)
def test_g_matches_oracle(counts, data_size, quality, extra, exponent):
    t = int(counts.max()) + 1 + extra
    g = jitted_g(counts, t, shares(data_size, quality), M, exponent)
    expected = oracles.generalization(counts, t, data_size, quality, M, exponent)
    # Compared as |g|^(1/beta): an exponent below one is steep at zero, where x cancels.
    np.testing.assert_allclose(signed_root(g, exponent), signed_root(expected, exponent), atol=3e-6)


def test_g_of_an_exactly_fair_client_is_zero():
    counts, share = np.array([3, 3, 3, 3]), np.full(4, 0.25, np.float32)
    np.testing.assert_array_equal(jitted_g(counts, 6, share, M, 0.5), np.zeros(4))


def test_problem_weight_is_the_sum_of_the_terms():
    terms = jnp.array([[1.0, 2.0, 3.0], [0.5, 0.25, 0.0]])
    problem = cohort_problem(jnp.ones(3), Reward(), terms)
    np.testing.assert_array_equal(problem.weight, [1.5, 2.25, 3.0])


@pytest.mark.parametrize("remaining", [None, [1.0, 0.5, 0.25, 0.125, 1.0, 0.75]])
def test_round_problem_contains_index_g_and_p(remaining):
    reward = Reward(alpha=10.0, beta=1.5, gamma=4.0)
    counts, sizes = [0, 1, 3, 2, 0, 4], [10, 20, 5, 40, 15, 10]
    index = jnp.array([jnp.inf, 1, 2, 3, 4, 5])
    p = None if remaining is None else jnp.asarray(remaining)
    share = shares(sizes, [1.0] * K)
    problem = problem_of(index, reward, jnp.asarray(counts), 7, share, p, M)
    np.testing.assert_array_equal(problem.index, index)
    g = np.array(oracles.generalization(counts, 7, sizes, [1.0] * K, M, 1.5))
    terms = np.asarray(problem.terms)
    np.testing.assert_allclose(terms[0], 10 / M * g, rtol=1e-4, atol=1e-6)
    assert len(terms) == (1 if remaining is None else 2)
    if remaining is not None:
        np.testing.assert_allclose(terms[1], 4 / M * np.array(remaining), rtol=1e-6)
    assert problem.energy_range == 2 * 10 + (0 if remaining is None else 4) + 1
    assert problem.energy_range.dtype == problem.index.dtype


@pytest.mark.parametrize("rows", [1, 2])
def test_cohort_value_matches_oracle_on_every_cohort(rows):
    rng = np.random.default_rng(rows)
    index = rng.normal(size=K).astype(np.float32)
    terms = rng.normal(size=(rows, K)).astype(np.float32)
    cohorts = np.array(list(itertools.combinations(range(K), 3)))
    values = jax.jit(jax.vmap(cohort_value, (None, None, 0, None)))
    value = values(index, terms, cohorts, np.ones(3, bool))
    expected = [oracles.energy(index, terms.sum(axis=0), c) for c in cohorts.tolist()]
    np.testing.assert_allclose(value, expected, atol=1e-5)


def test_cohort_value_skips_empty_slots():
    index = jnp.array([3.0, -9.0, 2.0, jnp.nan])
    terms = jnp.array([[1.0, 50.0, 0.25, jnp.nan]])
    clients, value = np.arange(4), jax.jit(cohort_value)
    assert value(index, terms, clients, np.array([True, False, True, False])) == 2.0 + 1.25
    assert np.isnan(value(index, terms, clients, np.zeros(4, bool)))
