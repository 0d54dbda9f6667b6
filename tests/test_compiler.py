"""Canaries: programs that a compiler which must not be used computes wrongly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.parametrize("rows", [33, 32_769])
def test_a_product_and_a_reduction_under_vmap(rows):
    """jax-ml/jax#39103: 0.10.2 gives 1065369600 for the last of 32,769 rows."""
    matrix = jnp.eye(3)
    x = jnp.stack((jnp.arange(float(rows)), jnp.zeros(rows), jnp.zeros(rows)), axis=1)

    @jax.jit
    @jax.vmap
    def square(row):
        return jnp.sum((matrix @ row) ** 2)

    np.testing.assert_array_equal(square(x), np.arange(rows, dtype=np.float32) ** 2)


def test_a_reduction_of_many_axes():
    """jax-ml/jax#39257: 0.10.2 and 0.11.0 crash from seven axes on."""
    x = jnp.arange(2.0**9).reshape((2,) * 9)
    assert float(jax.jit(jnp.sum)(x)) == 2**8 * (2**9 - 1)
