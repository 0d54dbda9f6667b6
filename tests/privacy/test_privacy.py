import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from pause_jax import ConfigError, SimConfig
from pause_jax.config import validate
from pause_jax.privacy import (
    MECHANISMS,
    Geometric,
    L1Laplace,
    NoPrivacy,
    PerCoordinateLaplace,
    Table,
    Uniform,
)
from tests.reference import oracles

LONG = 5000
TABLES = [(0.5, 0.25, 0.125), (1.0,), (0.1,) * 10, (0.0, 0.3, 0.0, 0.7)]

positive = st.floats(1e-3, 1e4)
schedules = st.one_of(
    st.builds(Geometric, total_epsilon=positive, decay=st.floats(1e-4, 5.0)),
    st.builds(Uniform, total_epsilon=positive, horizon=st.floats(1.0, 6000.0)),
    st.builds(Table, total_epsilon=positive, shares=st.sampled_from(TABLES)),
)


@jax.jit
def whole_life(budget):
    """(remaining after n, spent after n, epsilon of the n-th), n = 0 .. LONG; epsilon from 1."""
    n = jnp.arange(LONG + 1)
    return budget.remaining(n), budget.spent(n), budget.epsilon(n[1:])


def check_schedule(budget, slack):
    """The contract of a schedule; ``slack`` is relative to its total."""
    total = budget.total_epsilon
    remaining, spent, epsilon = (np.asarray(x, float) for x in whole_life(budget))
    np.testing.assert_allclose(remaining[0], 1, rtol=slack)
    np.testing.assert_allclose(spent[0], 0, atol=slack * total)
    assert (epsilon >= 0).all()
    assert ((remaining >= 0) & (remaining <= 1)).all()
    assert (np.diff(remaining) <= slack).all()
    assert (spent <= total * (1 + slack)).all()
    np.testing.assert_allclose(np.cumsum(epsilon), spent[1:], rtol=0, atol=slack * total)
    np.testing.assert_allclose(1 - spent / total, remaining, rtol=0, atol=slack)
    assert epsilon.sum() <= total * (1 + slack)


@given(budget=schedules)
def test_schedules_never_spend_more_than_the_total(budget):
    with jax.enable_x64(True):
        check_schedule(budget, 1e-11)


@given(budget=schedules)
def test_schedules_hold_in_float32(budget):
    check_schedule(budget, 1e-5)


def test_epsilon_matches_the_formulas_term_by_term():
    def table(shares):
        return Table(total_epsilon=40.0, shares=shares), oracles.table_epsilon, shares

    cases = [
        (Geometric(total_epsilon=40.0, decay=0.3), oracles.geometric_epsilon, 0.3),
        (Uniform(total_epsilon=40.0, horizon=7.0), oracles.uniform_epsilon, 7),
        *map(table, TABLES),
    ]
    with jax.enable_x64(True):
        for budget, epsilon_of, parameter in cases:
            formula = functools.partial(epsilon_of, 40, parameter)
            remaining, spent, epsilon = map(np.asarray, whole_life(budget))
            for n in (0, 1, 2, 3, 6, 7, 8, 60):
                p = oracles.remaining(formula, 40, n)
                np.testing.assert_allclose(remaining[n], p, atol=1e-12)
                np.testing.assert_allclose(spent[n], 40 * (1 - p), atol=1e-10)
                if n:
                    np.testing.assert_allclose(epsilon[n - 1], formula(n), rtol=1e-12)


@jax.jit
def life(budget, i):
    return budget.remaining(i), budget.epsilon(i), budget.exhausted(i)


@pytest.mark.parametrize(
    ("budget", "last"),
    [(Uniform(horizon=4.0), 4), (Table(shares=TABLES[0]), 3), (Table(shares=(1.0,)), 1)],
)
def test_exhausted_schedule_releases_nothing(budget, last):
    i = np.arange(1, 50)
    remaining, epsilon, exhausted = map(np.asarray, life(budget, i))
    assert (epsilon[:last] > 0).all()
    assert (epsilon[last:] == 0).all()
    np.testing.assert_array_equal(exhausted, i > last)
    # A budget that float32 hardly holds is not a spent one.
    _, _, exhausted = map(np.asarray, life(budget.replace(total_epsilon=1e-38), i))
    assert not exhausted[:last].any()
    assert np.ptp(remaining[last - 1 :]) == 0


N = np.asarray([1, 2, 3, 15, 16, 17, 300, 10**5])


@jax.jit
def figures(budget):
    """(spent after 0 and each of ``N`` releases, epsilon of the n-th for each of ``N``)."""
    return budget.spent(jnp.asarray([0, *N])), budget.epsilon(jnp.asarray(N))


@pytest.mark.parametrize(
    "budget",
    [
        *(Geometric(decay=d) for d in (1e-12, 1e-8, 1e-6, 1e-3, 0.04, 1.0, 10.0, 80.0)),
        Uniform(horizon=1e9),
    ],
    ids=str,
)
def test_slow_schedules_are_accurate_in_float32(budget):
    budget = jax.tree.map(np.float32, budget.replace(total_epsilon=200.0))
    i = np.arange(1.0, N[-1] + 1)
    if isinstance(budget, Geometric):
        decay = float(budget.decay)
        share = -np.expm1(-decay) * np.exp(-decay * (i - 1))
    else:
        share = np.ones_like(i) / float(budget.horizon)
    (at_first, *spent), epsilon = map(np.asarray, figures(budget))
    assert at_first == 0
    np.testing.assert_allclose(spent, 200 * np.cumsum(share)[N - 1], rtol=1e-6)
    np.testing.assert_allclose(epsilon, 200 * np.maximum(share[N - 1], 2.0**-100), rtol=1e-6)


def test_tiny_shares_of_a_table_are_accurate_in_float32():
    shares = Table(total_epsilon=200.0, shares=(1e-9,) * 5)
    spent = jax.jit(shares.spent)(np.arange(6))
    np.testing.assert_allclose(spent, 200e-9 * np.arange(6), rtol=1e-6)


@jax.jit
def million_releases(budget):
    """(epsilon of each, whether the budget is exhausted before it, spent after all)."""
    i = jnp.arange(1, 10**6 + 1)
    return budget.epsilon(i), budget.exhausted(i), budget.spent(i[-1])


@pytest.mark.parametrize(
    "budget", [Geometric(), Geometric(decay=80.0), Geometric(total_epsilon=1e-20)], ids=str
)
def test_open_ended_schedules_never_stop(budget):
    """Far beyond where float32 rounds eps_i to 0: from i = 2,184 on with the default."""
    epsilon, exhausted, spent = map(np.asarray, million_releases(budget))
    assert (epsilon > 0).all()
    assert not exhausted.any()
    total = float(budget.total_epsilon)
    assert epsilon.sum(dtype=float) <= total * (1 + 1e-5)
    np.testing.assert_allclose(spent, epsilon.sum(dtype=float), rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    [each() for each in MECHANISMS if each.unit != "none"],
    ids=lambda mechanism: mechanism.name,
)
def test_release_at_the_smallest_epsilon_is_finite(mechanism):
    update = np.linspace(-1.0, 1.0, DIMENSION, dtype=np.float32)
    least = np.asarray(million_releases(Geometric())[0])[-1]
    keys = jax.random.split(jax.random.key(0), 50)
    one, other = (
        np.asarray(jax.vmap(lambda key, u=u: release(mechanism, key, u, least))(keys), float)
        for u in (update, -update)
    )
    assert np.isfinite(one).all()
    # A delta of 1e-5 is left to the Gaussian: its noise is about 1 / delta times the distance.
    assert np.abs(one).mean() > (1e3 if mechanism.name == "gaussian" else 1e20)
    np.testing.assert_allclose(np.abs(one).mean(), np.abs(other).mean(), rtol=0.5)


# ---------------------------------------------------------------- mechanisms

DIMENSION = 8
PRIVATE = [PerCoordinateLaplace(sensitivity=0.02), L1Laplace(clip_norm=1.5)]
# XLA flushes subnormal numbers to zero.
normal_floats = {"width": 32, "allow_subnormal": False}
updates = arrays(np.float32, DIMENSION, elements=st.floats(-100, 100, **normal_floats))
release = jax.jit(lambda mechanism, key, update, epsilon: mechanism.privatize(key, update, epsilon))


def clipped(mechanism, update):
    """The release without its noise: an infinite epsilon."""
    return np.asarray(release(mechanism, jax.random.key(0), update, math.inf))


def noise(mechanism, epsilon, seed=0, number=4000):
    """Noise of many clients that send nothing, [number, DIMENSION]."""
    keys = jax.random.split(jax.random.key(seed), number)
    return np.asarray(releases_of_nothing(mechanism, keys, epsilon), float)


@jax.jit
def releases_of_nothing(mechanism, keys, epsilon):
    return jax.vmap(lambda key: mechanism.privatize(key, jnp.zeros(DIMENSION), epsilon))(keys)


def fits_laplace(sample, scale):
    """Kolmogorov-Smirnov p-value of "this sample is Laplace of this scale"."""
    return stats.kstest(sample.ravel(), stats.laplace(scale=scale).cdf).pvalue


@pytest.mark.parametrize("epsilon", [0.3, 8.0])
@pytest.mark.parametrize(
    ("mechanism", "sensitivity"),
    [(PRIVATE[0], 0.02), (PRIVATE[1], 2 * 1.5)],
    ids=lambda value: getattr(value, "name", None),
)
def test_noise_is_laplace_of_sensitivity_over_epsilon(mechanism, sensitivity, epsilon):
    sample = noise(mechanism, epsilon)
    assert sample.size >= 20_000
    scale = sensitivity / epsilon
    assert fits_laplace(sample, scale) > 1e-3
    assert fits_laplace(sample, scale * 2 / 3) < 1e-9
    assert fits_laplace(sample, scale * 3 / 2) < 1e-9


@given(update=updates)
def test_per_coordinate_clamp(update):
    out = clipped(PRIVATE[0], update)
    np.testing.assert_array_equal(out, np.clip(update, np.float32(-0.01), np.float32(0.01)))


@given(update=updates)
def test_l1_clip_bounds_the_norm_and_keeps_the_direction(update):
    out = clipped(PRIVATE[1], update).astype(float)
    norm = np.abs(update.astype(float)).sum()
    assert np.abs(out).sum() <= 1.5 * (1 + 1e-6)
    scale = min(1.0, 1.5 / norm) if norm else 1.0
    np.testing.assert_allclose(out, update * scale, rtol=1e-5, atol=1e-30)


def test_units_state_what_epsilon_protects():
    units = {mechanism.name: mechanism.unit for mechanism in MECHANISMS}
    whole = {"l1_vector", "gaussian", "priv_unit_g", "duchi_l2", "projected"}
    rest = {"none": "none", "per_coordinate": "coordinate"}
    assert units == rest | dict.fromkeys(whole, "update")


@given(update=updates)
def test_no_privacy_is_the_identity(update):
    out = release(NoPrivacy(), jax.random.key(0), update, 0.1)
    np.testing.assert_array_equal(out, update)


def test_no_privacy_reports_an_infinite_loss():
    n, budget = jnp.array([0, 1, 7]), NoPrivacy().budget
    np.testing.assert_array_equal(budget.spent(n), [0, math.inf, math.inf])
    np.testing.assert_array_equal(budget.remaining(n), [1, 1, 1])
    np.testing.assert_array_equal(budget.epsilon(n), [math.inf] * 3)


def test_a_table_with_a_zero_share_is_refused():
    table = Table(shares=(0.5, 0.0, 0.5))
    with pytest.raises(ConfigError, match="Remove zeros"):
        validate(SimConfig(privacy=PerCoordinateLaplace(budget=table)))
