"""Random draws for many clients or samples in one call, using both output words of threefry.

``jax.random`` folds two threefry words into one, and XLA compiles each call to a separate loop.
Here, a single call draws both output words for all clients. With a threefry key, a client's draws
depend only on the key and the client number, not on other clients or the number of words.
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
    """Draw ``count`` random words for each client or sample in ``numbers``, int [n] >= 0.

    Threefry (Salmon et al., 2011) encrypts pairs of words, here (number + 1, place), with the key.
    ``jax.random`` encrypts only pairs that start with 0, so it never encrypts any of these pairs.
    For other key implementations, the number is folded into the key.

    Returns:
      uint32 [n, count]. With a threefry key, a larger ``count`` (static) only appends words.
    """
    if str(jax.random.key_impl(key)) != THREEFRY:
        one = jax.vmap(lambda number: jax.random.bits(jax.random.fold_in(key, number), (count,)))
        return one(numbers)
    first, second = jax.random.key_data(key)
    pairs = numbers.shape[0], -(-count // 2)
    number = jnp.broadcast_to(numbers.astype(jnp.uint32)[:, None] + np.uint32(1), pairs)
    # Under vmap, the primitive's CPU loop requires a batched `place`, hence the term 0 * number.
    place = jnp.broadcast_to(jnp.arange(pairs[1], dtype=jnp.uint32), pairs) + number * np.uint32(0)
    words = threefry2x32_p.bind(first, second, number, place)
    return jnp.stack(words, axis=-1).reshape(pairs[0], -1)[:, :count]


def bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw a uint32 array of random words from a single key."""
    return bits_of(key, jnp.zeros(1, jnp.uint32), int(np.prod(shape))).reshape(shape)


def below(word: Array, bound: Array | int) -> Array:
    """Convert random words to integers in [0, bound), an int32 array of the same shape.

    The modulo makes small integers about 1 + bound / 2^32 times as likely as large ones.
    """
    return (word % jnp.asarray(bound).astype(jnp.uint32)).astype(jnp.int32)


def laplace(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Draw Laplace noise of scale 1."""
    return laplace_from(bits(key, shape)).astype(dtype)


def laplace_from(words: Array) -> Array:
    """Convert random words to Laplace noise of scale 1, a float32 array of the same shape.

    One bit sets the sign, and 31 set the magnitude, which is at most 22.2 (16.6 in ``jax.random``).
    """
    magnitude = -jnp.log((_signed(words >> 1) + 0.5) * 2.0**-31)
    return jnp.where(words & 1, magnitude, -magnitude)


def normal(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Draw standard normal noise."""
    return normal_from(bits(key, shape)).astype(dtype)


def normal_from(words: Array) -> Array:
    """Convert random words to standard normal noise, a float32 array of the same shape."""
    uniform = (_signed(words) + 0.5) * 2.0**-31
    largest = 1 - 2.0**-24  # erf_inv(1) is infinite
    return np.float32(2**0.5) * jax.lax.erf_inv(jnp.clip(uniform, -largest, largest))


def _signed(words: Array) -> Array:
    # Reinterpret as int32, because many CPUs have no vector instruction to convert uint32 to float.
    return jax.lax.bitcast_convert_type(words, jnp.int32).astype(jnp.float32)


def evenly(count: int) -> NDArray[np.float64]:
    """Return frac(i * golden ratio) for i = 0, ..., ``count`` - 1, float [count].

    The values are spread evenly over [0, 1), and consecutive values differ by at least 0.38.
    """
    return np.asarray(np.arange(count) * _GOLDEN % 1, np.float64)
