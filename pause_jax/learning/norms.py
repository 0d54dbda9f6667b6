"""Normalisation layers by name, for models whose every weight is released and for the authors'."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from pause_jax.learning.learner import CLEAR

NORMS = ("group", "batch", "none")
GROUPS = 8


class ClearBatchNorm(nn.Module):
    """Batch norm of which nothing is clipped or noised, as in the PAUSE authors' program.

    Scale and bias are trained, but stand in the collection ``clear`` and not in ``params``; the
    running statistics (momentum 0.9) are in ``batch_stats``.
    """

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None) -> Array:
        features = x.shape[-1:]
        scale = self.variable(CLEAR, "scale", jnp.ones, features)
        bias = self.variable(CLEAR, "bias", jnp.zeros, features)
        standard = nn.BatchNorm(
            use_running_average=not train,
            momentum=0.9,
            use_scale=False,
            use_bias=False,
            name="statistics",
        )
        rows = None if mask is None else mask.reshape(-1, *[1] * (x.ndim - 1))
        lead = (None,) * (x.ndim - 1)
        return standard(x, mask=rows) * scale.value[lead] + bias.value[lead]


def normalise(x: Array, norm: str, name: str, train: bool, mask: Array | None) -> Array:
    """A normalisation layer.

    Args:
      x: [B, ..., features].
      norm: one of ``NORMS``. ``group`` has no running statistics, and its scale and bias are
        released as all weights are: eight groups of channels after a convolution, all features
        together (a layer norm) after a dense layer.
      name: of the layer.
      train: whether ``batch`` takes the statistics of this batch, and updates the running ones.
      mask: bool [B], False for rows that only fill up a batch; None if there are none.
    """
    if norm == "batch":
        return ClearBatchNorm(name=name)(x, train, mask)
    if norm == "group":
        return nn.GroupNorm(num_groups=GROUPS if x.ndim > 2 else 1, name=name)(x)
    return x
