"""Batch, group and layer norm whose gradients reuse the statistics from the forward pass."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.learning.convolution import stored
from pause_jax.learning.learner import CLEAR, GROUPS

# Weight of the previous values when the running statistics are updated.
MOMENTUM = 0.9


class Pool(NamedTuple):
    """Rule for pooling statistics over the rows of a batch or over feature groups of each row."""

    groups: int | None  # number of groups of adjacent features per row; None to pool over rows
    epsilon: float  # added to the variance; Flax's default for the layer

    def total(self, sums: Array, weight: Array) -> Array:
        """Return the sums within feature groups, [B, C], or over rows with weight > 0, [1, C]."""
        if self.groups is None:
            entered = jnp.where(weight[:, None] > 0, sums, 0)
            return jnp.sum(entered, axis=0, keepdims=True)
        parts = sums.reshape(*sums.shape[:-1], self.groups, -1)
        return jnp.broadcast_to(parts.sum(-1, keepdims=True), parts.shape).reshape(sums.shape)


BATCH = Pool(groups=None, epsilon=1e-5)


def normalise(x: Array, norm: str, name: str, train: bool, mask: Array | None) -> Array:
    """Apply the norm layer ``norm`` (see :class:`models.Cnn3`) to ``x`` [B, ..., features].

    ``mask`` is None, or bool [B] with False for padding rows.
    """
    if norm == "batch":
        return ClearBatchNorm(name=name)(x, train, mask)
    if norm == "group":
        return GroupNorm(groups=GROUPS if x.ndim > 2 else 1, name=name)(x)
    return x


class ClearBatchNorm(nn.Module):
    """Batch norm whose updates are sent without clipping or noise, as in the authors' code."""

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None) -> Array:
        features = x.shape[-1:]
        scale = self.variable(CLEAR, "scale", jnp.ones, features).value
        bias = self.variable(CLEAR, "bias", jnp.zeros, features).value
        running = _Running(name="statistics")(features)
        if not train:
            factor = scale * jax.lax.rsqrt(running["var"].value + BATCH.epsilon)
            return (x - _rows(running["mean"].value, x)) * _rows(factor, x) + _rows(bias, x)
        weight = jnp.ones(x.shape[0], x.dtype) if mask is None else mask.astype(x.dtype)
        y, mean, variance = standardised(BATCH, x, scale, bias, weight)
        if not self.is_initializing():
            for name, value in (("mean", mean[0]), ("var", variance[0])):
                running[name].value = MOMENTUM * running[name].value + (1 - MOMENTUM) * value
        return y


class _Running(nn.Module):
    @nn.compact
    def __call__(self, features: tuple[int, ...]) -> dict[str, Any]:
        start = {"mean": jnp.zeros, "var": jnp.ones}
        return {n: self.variable("batch_stats", n, init, features) for n, init in start.items()}


class GroupNorm(nn.Module):
    """Group norm (Wu and He, 2018) with a scale and a bias for each feature.

    Attributes:
      groups: number of groups of adjacent features that share statistics; 1 for layer norm.
    """

    groups: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        weight = jnp.ones(x.shape[0], x.dtype)
        y, _, _ = standardised(Pool(self.groups, epsilon=1e-6), x, scale, bias, weight)
        return y


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def standardised(
    pool: Pool, x: Array, scale: Array, bias: Array, weight: Array
) -> tuple[Array, Array, Array]:
    """Return (y, mean, variance) with y = (x - mean) / sqrt(variance + epsilon) * scale + bias.

    Batch statistics exclude rows with weight 0. No gradient flows through the returned mean and
    variance, which are [1, C] for batch norm and [B, C] otherwise.
    """
    return _forward(pool, x, scale, bias, weight)[0]


def _forward(pool: Pool, x: Array, scale: Array, bias: Array, weight: Array) -> Any:
    places, x = tuple(range(1, x.ndim - 1)), stored(lambda x: x, x)
    ones = jnp.full((x.shape[0], x.shape[-1]), math.prod(x.shape[1:-1]), x.dtype)
    count = jnp.maximum(pool.total(ones, weight), 1)
    mean = pool.total(jnp.sum(x, places), weight) / count
    square = pool.total(jnp.sum(x * x, places), weight) / count
    variance = jnp.maximum(square - mean * mean, 0)
    root = jax.lax.rsqrt(variance + pool.epsilon)
    y = (x - _rows(mean, x)) * _rows(root * scale[None], x) + _rows(bias, x)
    return (y, mean, variance), (x, scale, weight, mean, root, count)


def _backward(pool: Pool, kept: Any, gradients: tuple[Array, Array, Array]) -> Any:
    x, scale, weight, mean, root, count = kept
    d, _, _ = gradients
    places = tuple(range(1, x.ndim - 1))
    centred = x - _rows(mean, x)
    plain = jnp.sum(d, places)
    along = jnp.sum(d * centred, places) * root
    everywhere = jnp.ones_like(weight)
    # ``shift`` and ``stretch`` are the gradients through each pool's mean and variance.
    shift = pool.total(plain * scale[None], everywhere) * root / count
    stretch = pool.total(along * scale[None], everywhere) * root * root / count
    entered = weight[:, None]
    dx = (
        d * _rows(root * scale[None], x)
        - _rows(shift * entered, x)
        - centred * _rows(stretch * entered, x)
    )
    return dx, along.sum(0), plain.sum(0), jnp.zeros_like(weight)


standardised.defvjp(_forward, _backward)


def _rows(small: Array, x: Array) -> Array:
    """Reshape ``small`` ([C], [1, C] or [B, C]) to broadcast against ``x`` [B, ..., C]."""
    small = small if small.ndim == 2 else small[None]
    return small.reshape(small.shape[0], *[1] * (x.ndim - 2), small.shape[-1])
