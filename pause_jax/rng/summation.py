"""Sums with identical rounding in every program and at every batch size.

XLA chooses the order of additions based on array shapes. A one-ulp difference can decide a
near-tie between two cohorts, and two runs diverge once they choose different cohorts.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def tree_sum(values: Array) -> Array:
    """Sum over the last axis (length m) using a balanced tree of additions.

    Each term takes part in at most ceil(log2 m) additions. The sum is non-decreasing in each term.
    """
    while (size := values.shape[-1]) > 1:
        half = size // 2
        pairs = values[..., :half] + values[..., half : 2 * half]
        values = jnp.concatenate([pairs, values[..., 2 * half :]], axis=-1)
    return values[..., 0]


def add(total: Array, rest: Array, term: Array) -> tuple[Array, Array]:
    """Add a non-negative term to a non-negative compensated sum.

    Returns (rounded total, rounding error not yet included). After any number of terms, the total's
    relative error is about that of a single rounding. Knuth's two-sum computes the exact rounding
    error of each addition. It relies on XLA's default of not reordering additions.
    """
    rough = total + term
    of_term = rough - total
    rest = rest + ((total - (rough - of_term)) + (term - of_term))
    total = rough + rest
    return total, rest - (total - rough)


def on_grid(values: Array, terms: int) -> Array:
    """Round finite values [K] to a grid on which sums of up to ``terms`` values are exact.

    The grid spacing is about one ulp of the largest possible sum, which is ``terms`` (static) times
    the largest absolute value.
    """
    # Adding ``large`` rounds a value to the float grid near ``large``, and subtracting ``large`` is
    # exact. Taking the maximum prevents XLA from fusing the product with the addition.
    large = jnp.max(3.0 * terms * jnp.abs(values))
    return (values + large) - large
