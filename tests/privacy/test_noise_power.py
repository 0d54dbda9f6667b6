"""Expected squared noise of a release: closed forms beside samples of the mechanism itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.privacy import (
    DuchiL2,
    GaussianMechanism,
    Geometric,
    L1Laplace,
    Mechanism,
    NoPrivacy,
    PerCoordinateLaplace,
    PrivUnitG,
    Projected,
    Table,
)
from pause_jax.privacy.gaussian import clip_l2
from pause_jax.privacy.mechanisms import clip_l1
from tests.support.network import context

D, DRAWS = 24, 8000
MECHANISMS = [
    PerCoordinateLaplace(sensitivity=0.3),
    L1Laplace(clip_norm=0.7),
    GaussianMechanism(clip_norm=0.7),
    PrivUnitG(clip_norm=0.7),
    DuchiL2(clip_norm=0.7),
    Projected(inner=GaussianMechanism(clip_norm=0.7), dimension=8),
    Projected(inner=PrivUnitG(clip_norm=0.7), dimension=8),
    NoPrivacy(),
]


class Clip(Mechanism):
    """What a mechanism of clip norm 0.7 releases if its noise is left out."""

    def privatize(self, key, update, epsilon):
        return clip_l2(update, 0.7)


def without_noise(mechanism, key, update):
    """The clipped update, through the same projection if there is one."""
    if isinstance(mechanism, Projected):
        return mechanism.replace(inner=Clip()).privatize(key, update, 1.0)
    if isinstance(mechanism, PerCoordinateLaplace):
        return jnp.clip(update, -0.15, 0.15)
    if isinstance(mechanism, L1Laplace):
        return clip_l1(update, 0.7)
    return update if isinstance(mechanism, NoPrivacy) else clip_l2(update, 0.7)


UPDATE = np.float32(3 * np.random.default_rng(1).standard_normal(D))  # beyond the clip


@jax.jit
def squared_noise(keys, mechanism, epsilon):
    """|release - clipped update|^2 of one release for each key, [DRAWS]."""

    def one(key):
        released = mechanism.privatize(key, UPDATE, epsilon)
        return jnp.sum((released - without_noise(mechanism, key, UPDATE)) ** 2)

    return jax.vmap(one)(keys)


@jax.jit
def closed_form(mechanism, epsilon):
    return mechanism.noise_power(epsilon, D)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.7, 6.0])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.name}-{MECHANISMS.index(m)}")
def test_closed_form_matches_the_mean_of_many_releases(mechanism, epsilon):
    keys = jax.random.split(jax.random.key(2), DRAWS)
    seen = np.asarray(squared_noise(keys, mechanism, np.float32(epsilon)), float)
    error = 4.5 * seen.std() / DRAWS**0.5 + 1e-6
    epsilons = np.full(30, epsilon, np.float32)
    epsilons[1] *= 0.8
    right, other, *_ = closed_form(mechanism, epsilons).tolist()
    assert abs(seen.mean() - right) < error
    # Negative control: four fifths of epsilon. Duchi's noise no longer falls at 6.
    if mechanism.name != "none" and (mechanism.name, epsilon) != ("duchi_l2", 6.0):
        assert abs(seen.mean() - other) > error


def test_noise_falls_with_epsilon_and_stays_finite():
    epsilon = np.geomspace(1e-4, 1e3, 30, dtype=np.float32)
    for mechanism in MECHANISMS[:-1]:
        power = np.asarray(closed_form(mechanism, epsilon))
        assert np.isfinite(power).all(), mechanism
        assert (power[:-1] >= power[1:] * (1 - 1e-4)).all(), mechanism
        assert power[0] > 1.9 * power[-1], mechanism


def test_policy_reads_budgets_and_noise_of_the_next_release():
    own = Table(total_epsilon=jnp.asarray([2.0, 8.0, 8.0]), shares=(0.5, 0.25))
    mechanism = PerCoordinateLaplace(sensitivity=0.1, budget=own)
    seen = context([1, 1, 1], 2, privacy=mechanism, update_size=7)
    np.testing.assert_array_equal(seen.budget, [2, 8, 8])
    expected = 2 * 7 * (0.1 / np.asarray([1.0, 2.0, np.nan])) ** 2
    power = np.asarray(jax.jit(seen.noise_power)(np.array([0, 1, 2])))
    np.testing.assert_allclose(power[:2], expected[:2], rtol=1e-6)
    assert np.isinf(power[2]), "its budget is spent"
    # Without learning it is that of one entry.
    alone = np.asarray(jax.jit(seen._replace(update_size=0).noise_power)(np.array([0, 1, 2])))
    np.testing.assert_allclose(alone[:2], expected[:2] / 7, rtol=1e-6)
    public = context([1, 1, 1], 2)
    np.testing.assert_array_equal(public.budget, np.inf)
    np.testing.assert_array_equal(jax.jit(public.noise_power)(np.zeros(3, int)), 0)


def test_scalar_budget_applies_to_each_client():
    seen = context([1, 1, 1], 2, privacy=PerCoordinateLaplace(budget=Geometric(total_epsilon=5.0)))
    np.testing.assert_array_equal(seen.budget, [5, 5, 5])
    late = np.asarray(jax.jit(seen.noise_power)(np.array([10, 5000, 9999])))
    assert np.isfinite(late).all(), "a fading schedule never ends"
    assert late[0] < late[1]
