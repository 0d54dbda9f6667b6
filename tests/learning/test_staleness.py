"""Weights of stale updates against their oracle."""

import jax
import numpy as np
import pytest

from pause_jax.learning.server import damping
from tests.reference.refl import stale_weights

RNG = np.random.default_rng(0)
FRESH, STALE = RNG.normal(size=(4, 6)), RNG.normal(size=(4, 6)) * np.array([[0.5], [1], [3], [9]])
IN_TIME, DUE = np.array([True, True, False, True]), np.array([True, False, True, True])

jitted = jax.jit(damping)


def factors(beta, in_time=IN_TIME, due=DUE, stale=STALE):
    fresh, stale = np.float32(FRESH), np.float32(stale)
    return np.asarray(jitted(beta, fresh, in_time, stale, due))


@pytest.mark.parametrize("beta", [0.0, 0.35, 1.0])
def test_stale_weights_match_the_oracle(beta):
    expected = stale_weights(FRESH[IN_TIME], STALE[DUE], 1, beta)
    np.testing.assert_allclose(factors(beta)[DUE], expected, rtol=1e-4)
    # Who moves the mean most has the largest; without boost all have half.
    assert np.argmax(factors(0.35)[DUE]) == 2
    np.testing.assert_allclose(factors(0.0), 0.5)


def test_published_factor_gives_different_weights():
    wrong = stale_weights(FRESH[IN_TIME], STALE[DUE], 1, 0.35, scale=10.0)
    assert np.abs(factors(0.35)[DUE] - wrong).min() > 0.05


def test_stale_weights_are_equal_without_fresh_updates():
    np.testing.assert_allclose(factors(0.35, IN_TIME & False), (1 - 0.35) / 2, rtol=1e-6)


def test_updates_that_are_not_averaged_have_no_effect():
    broken = np.where(DUE[:, None], STALE, np.nan)
    np.testing.assert_array_equal(factors(0.35, stale=broken)[DUE], factors(0.35)[DUE])
    nobody = factors(0.35, due=DUE & False)
    assert np.isfinite(nobody).all()
