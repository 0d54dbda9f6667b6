"""Sums that round alike in every program, whatever is batched beside them.

XLA adds in an order of its own, which changes with the shape of a batch. An ulp decides a near-tie,
and after one other choice two runs go their own ways.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def tree_sum(values: Array) -> Array:
    """Sum over the last axis as a balanced tree: error at most ceil(log2 m) roundings of each term.

    Additions round monotonically, so terms that are larger one by one never have a smaller sum.
    """
    while (size := values.shape[-1]) > 1:
        half = size // 2
        pairs = values[..., :half] + values[..., half : 2 * half]
        values = jnp.concatenate([pairs, values[..., 2 * half :]], axis=-1)
    return values[..., 0]


def add(total: Array, rest: Array, term: Array) -> tuple[Array, Array]:
    """Add a term >= 0 to a sum >= 0 of many, kept in two numbers (total, rest): rounded, left out.

    After any number of terms the relative error of ``total`` is about one rounding. Knuth's
    two-sum: each line in brackets is exact, as XLA does not reorder additions by default.
    """
    rough = total + term
    of_term = rough - total
    rest = rest + ((total - (rough - of_term)) + (term - of_term))
    total = rough + rest
    return total, rest - (total - rough)


def on_grid(values: Array, terms: int) -> Array:
    """Finite values [K] rounded so that sums of up to ``terms`` (static) are exact in any order.

    The grid is as coarse as the last place of such a sum may be: ``terms`` times the largest value.
    """
    # Additions to a number so large round to its last place, and the subtraction is exact. The
    # maximum keeps the product from being fused with them.
    large = jnp.max(3.0 * terms * jnp.abs(values))
    return (values + large) - large
