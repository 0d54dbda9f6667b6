"""Calls of NumPy and SciPy from a compiled policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# JAX copies larger arguments of a callback on another thread of those that run programs. If all of
# them wait in callbacks, none is left to copy, and they wait for ever (jax-ml/jax#24255).
PIECE_BYTES = 64 * 1024


def call_on_host(function: Callable[..., Any], like: jax.ShapeDtypeStruct, *given: Array) -> Array:
    """Call a function of NumPy arrays, its arguments copied in pieces.

    Args:
      function: of as many arrays as are given; pure.
      like: shape and dtype of what it returns.
      given: its arguments. Under ``vmap`` it is called for one after the other.
    """
    pieces = [_split(array) for array in given]
    counts, shapes = [len(each) for each in pieces], [array.shape for array in given]

    def on_host(*flat: Array) -> Any:
        left = iter(flat)
        parts = ([np.asarray(next(left)) for _ in range(count)] for count in counts)
        joined = (np.concatenate(p).reshape(shape) for p, shape in zip(parts, shapes, strict=True))
        return function(*joined)

    flat = [piece for each in pieces for piece in each]
    return jax.pure_callback(on_host, like, *flat, vmap_method="sequential")


def _split(array: Array) -> list[Array]:
    length = PIECE_BYTES // array.dtype.itemsize
    return jnp.split(array.ravel(), list(range(length, array.size, length)))
