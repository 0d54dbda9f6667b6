"""Sums that round the same way in every program and at every batch size.

XLA chooses the order of additions based on the shape of a batch. One ulp can decide a near-tie, and
after one different choice two runs diverge.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def tree_sum(values: Array) -> Array:
    """Sum over the last axis as a balanced tree, with at most ceil(log2 m) roundings of each term.

    Rounded addition is monotone, so increasing a term never decreases the sum.
    """
    while (size := values.shape[-1]) > 1:
        half = size // 2
        pairs = values[..., :half] + values[..., half : 2 * half]
        values = jnp.concatenate([pairs, values[..., 2 * half :]], axis=-1)
    return values[..., 0]


def add(total: Array, rest: Array, term: Array) -> tuple[Array, Array]:
    """Add a non-negative term to a non-negative compensated sum.

    Returns (rounded total, rounding error not yet included). After any number of terms, the
    relative error of the total is about one rounding. In Knuth's two-sum, each expression in
    brackets is exact, because XLA does not reorder additions by default.
    """
    rough = total + term
    of_term = rough - total
    rest = rest + ((total - (rough - of_term)) + (term - of_term))
    total = rough + rest
    return total, rest - (total - rough)


def on_grid(values: Array, terms: int) -> Array:
    """Round finite values [K] to a grid; sums of up to ``terms`` of them are exact in any order.

    The grid spacing is about one ulp of the largest possible sum, ``terms`` (static) times the
    largest value.
    """
    # Adding a large number rounds a value to the ulp of that number, and the subtraction is exact.
    # The maximum keeps the product from being fused with them.
    large = jnp.max(3.0 * terms * jnp.abs(values))
    return (values + large) - large
