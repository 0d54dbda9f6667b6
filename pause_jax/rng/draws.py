"""Random numbers drawn in blocks, many at once and with every bit that threefry makes.

``jax.random`` folds two words of threefry into one, and each of its calls is a loop that is
compiled by itself. Here both words are used, and all clients draw in one call. What a number draws
depends on the key and on that number alone, not on who draws beside it, nor on how much is drawn.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.random import threefry2x32_p
from numpy.typing import NDArray

THREEFRY = "threefry2x32"
_GOLDEN = 0.6180339887498949


def bits_of(key: Array, numbers: Array, count: int) -> Array:
    """Random words for each of some numbers >= 0, int [n], of clients or samples.

    Threefry (Salmon et al., 2011) encrypts pairs of words with the key: here (number + 1, place).
    No other draw from this key meets them, as ``jax.random`` folds, splits and draws with pairs
    that start with 0. A key of another kind folds in the number.

    Returns:
      uint32 [n, count]; a larger count (static) continues a smaller one if the key is of threefry.
    """
    if str(jax.random.key_impl(key)) != THREEFRY:
        one = jax.vmap(lambda number: jax.random.bits(jax.random.fold_in(key, number), (count,)))
        return one(numbers)
    first, second = jax.random.key_data(key)
    pairs = numbers.shape[0], -(-count // 2)
    number = jnp.broadcast_to(numbers.astype(jnp.uint32)[:, None] + np.uint32(1), pairs)
    # With the shape of `number` under any vmap: the primitive's loop on a CPU asks for it.
    place = jnp.broadcast_to(jnp.arange(pairs[1], dtype=jnp.uint32), pairs) + number * np.uint32(0)
    words = threefry2x32_p.bind(first, second, number, place)
    return jnp.stack(words, axis=-1).reshape(pairs[0], -1)[:, :count]


def bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Random words of one key, uint32 of ``shape``."""
    return bits_of(key, jnp.zeros(1, jnp.uint32), int(np.prod(shape))).reshape(shape)


def below(word: Array, bound: Array | int) -> Array:
    """A number in [0, bound) from a random word: int32 of its shape.

    The first few are likelier, by a share of bound / 2^32.
    """
    return (word % jnp.asarray(bound).astype(jnp.uint32)).astype(jnp.int32)


def laplace(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Laplace noise of scale 1."""
    return laplace_from(bits(key, shape)).astype(dtype)


def laplace_from(words: Array) -> Array:
    """Laplace noise of scale 1 from random words, float32 of their shape: a sign and a logarithm.

    31 bits make the magnitude, so it reaches 22; ``jax.random.laplace`` ends at 16.
    """
    magnitude = -jnp.log((_signed(words >> 1) + 0.5) * 2.0**-31)
    return jnp.where(words & 1, magnitude, -magnitude)


def normal(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Standard normal noise."""
    return normal_from(bits(key, shape)).astype(dtype)


def normal_from(words: Array) -> Array:
    """Standard normal noise from random words, float32 of their shape."""
    uniform = (_signed(words) + 0.5) * 2.0**-31
    largest = 1 - 2.0**-24  # 1 itself would be infinite noise
    return np.float32(2**0.5) * jax.lax.erf_inv(jnp.clip(uniform, -largest, largest))


def _signed(words: Array) -> Array:
    # By way of int32: no processor here converts many unsigned words at once.
    return jax.lax.bitcast_convert_type(words, jnp.int32).astype(jnp.float32)


def evenly(count: int) -> NDArray[np.float64]:
    """Multiples 0, 1, ... of the golden ratio modulo 1: float [count].

    Any stretch of them is spread over the whole, so what is given out by them is mixed.
    """
    return np.asarray(np.arange(count) * _GOLDEN % 1, np.float64)
