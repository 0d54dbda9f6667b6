"""Sums of the same bits in every order, and runs of the same cohorts in every batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pause_jax.learning import Partition
from pause_jax.rng.summation import on_grid, tree_sum

summed = jax.jit(tree_sum)


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_tree_sum_is_exact_without_rounding_and_keeps_the_order(size):
    rng = np.random.default_rng(size)
    dyadic = rng.integers(-99, 99, (200, size)).astype(np.float32) / 4
    np.testing.assert_array_equal(summed(dyadic), dyadic.sum(axis=1))
    low = rng.normal(size=(200, size)).astype(np.float32)
    high = np.nextafter(low, np.where(rng.random(low.shape) < 0.5, np.inf, low))
    assert np.less_equal(summed(low), summed(high)).all()


gridded = jax.jit(on_grid, static_argnums=1)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 15, 200]), st.floats(-20, 20))
def test_sums_on_a_grid_are_exact_in_any_order(seed, terms, power):
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=300) * 10**power).astype(np.float32)
    rounded = np.asarray(gridded(values, terms))
    # No more than the last place of the largest possible sum.
    largest = terms * np.abs(values).max()
    np.testing.assert_allclose(rounded, values, rtol=0, atol=2 * largest * 2.0**-23)
    for _ in range(5):
        some = rng.choice(rounded, terms, replace=False)
        sums = {np.add.accumulate(rng.permutation(some), dtype=np.float32)[-1] for _ in range(5)}
        assert sums == {np.float32(some.astype(np.float64).sum())}


def test_sums_off_the_grid_depend_on_the_order():
    rng = np.random.default_rng(0)
    some = rng.normal(size=15).astype(np.float32)
    sums = {np.add.accumulate(rng.permutation(some), dtype=np.float32)[-1] for _ in range(20)}
    assert len(sums) > 1


def test_values_on_coarse_grid_are_unchanged():
    values = np.float32([0.25, -3.0, 0.0, 100.5])
    np.testing.assert_array_equal(gridded(values, 4), values)
    np.testing.assert_array_equal(gridded(0 * values, 4), 0)


# --- what they are for


def test_equal_shares_have_the_same_bits_in_a_sweep():
    """Sizes are constants of the program in a trace, and arguments of it in a sweep."""
    size, quality = np.full(30, 47, np.int32), np.ones(30, np.float32)

    def share(size, quality):
        return Partition(order=size, start=size, size=size, quality=quality).share

    constant = jax.jit(lambda: share(jnp.asarray(size), jnp.asarray(quality)))()
    np.testing.assert_array_equal(jax.jit(share)(size, quality), constant)
    seeds = np.tile(size, (4, 1)), np.tile(quality, (4, 1))
    np.testing.assert_array_equal(jax.jit(jax.vmap(share))(*seeds), [constant] * 4)
