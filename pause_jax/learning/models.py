"""Flax models. A config makes the module; the module is applied to a batch [B, ...]."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import Config, static
from pause_jax.learning.convolution import FORMS, convolution, gradient_stored, max_pool
from pause_jax.learning.network import Network, linen_network
from pause_jax.learning.normalisation import NORMS, normalise

# PyTorch's default for linear and convolution kernels, which the authors' runs used:
# uniform with variance 1 / (3 fan_in).
kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def _bias_init(fan_in: int) -> nn.initializers.Initializer:
    bound = fan_in**-0.5

    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def dense(x: Array, features: int, name: str) -> Array:
    """An affine layer with PyTorch's default initial weights."""
    layer = nn.Dense(
        features, kernel_init=kernel_init, bias_init=_bias_init(x.shape[-1]), name=name
    )
    return layer(x)


class _Mlp(nn.Module):
    hidden: tuple[int, ...]
    num_outputs: int

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None) -> Array:
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.hidden):
            x = nn.relu(dense(x, width, f"hidden_{i}"))
        return dense(x, self.num_outputs, "output")


class _ConvPool(nn.Module):
    """3x3 valid convolution, perhaps a 2x2 maximum, bias: the parameters of ``nn.Conv``."""

    features: int
    pooled: bool
    convolution: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (3, 3, x.shape[-1], self.features)
        kernel = self.param("kernel", kernel_init, shape)
        bias = self.param("bias", _bias_init(math.prod(shape[:-1])), shape[-1:])
        convolve = convolution(self.convolution)
        x = convolve(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        # The maximum of the sums is the sum with the maximum, and has a quarter of the work; the
        # same holds for the relu that follows.
        return gradient_stored((max_pool(x, (2, 2)) if self.pooled else x) + bias[None, None, None])


class _Cnn(nn.Module):
    """3x3 valid convolutions, those in ``pooled`` with a 2x2 pooling, then dense layers; each with
    relu and norm, and an affine layer at the end.
    """

    widths: tuple[int, ...]
    pooled: tuple[int, ...]
    hidden: tuple[int, ...]
    norm: str
    convolution: str
    num_outputs: int

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None) -> Array:
        for i, width in enumerate(self.widths):
            layer = _ConvPool(width, i in self.pooled, self.convolution, name=f"conv_{i}")
            x = normalise(nn.relu(layer(x)), self.norm, f"norm_{i}", train, mask)
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.hidden, start=len(self.widths)):
            x = nn.relu(dense(x, width, f"hidden_{i - len(self.widths)}"))
            x = normalise(x, self.norm, f"norm_{i}", train, mask)
        return dense(x, self.num_outputs, "output")


class Model(Config):
    """A model's config."""

    # Whether whole numbers (tokens) are among its inputs.
    takes_tokens: ClassVar[bool] = False
    # Whether training draws random numbers (dropout).
    draws: ClassVar[bool] = False

    def module(self, num_outputs: int) -> nn.Module:
        """The Flax module: inputs [B, ...] to outputs [B, num_outputs].

        Its ``__call__`` may also take ``train`` and ``mask``, which is bool [B], False for rows
        that only fill up a batch and must not enter batch statistics.
        """
        raise NotImplementedError

    def network(self, num_outputs: int) -> Network:
        """The pure functions of the module."""
        return linen_network(self.module(num_outputs), draws=self.draws)


class Linear(Model):
    """One affine layer."""

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "one affine layer"

    def module(self, num_outputs: int) -> nn.Module:
        return _Mlp(hidden=(), num_outputs=num_outputs)


class Mlp(Model):
    """Fully connected with relu; (32, 16) on MNIST is the authors' 25,818-parameter network.

    Attributes:
      hidden: widths of the hidden layers.
    """

    name: ClassVar[str] = "mlp"
    summary: ClassVar[str] = "fully connected, relu (32, 16 as in the PAUSE runs)"

    hidden: tuple[int, ...] = static(default=(32, 16), at_least=1)

    def module(self, num_outputs: int) -> nn.Module:
        return _Mlp(hidden=self.hidden, num_outputs=num_outputs)


class Cnn3(Model):
    """Three 3x3 valid convolutions (32, 64, 128) with pooling, then 128-64-32: for 32x32 images.

    Each of the six is followed by relu and a norm. 170,474 weights with one.

    Attributes:
      norm: ``group`` (group norms after the convolutions, layer norms after the dense layers: no
        running statistics, and all weights go through the privacy mechanism),
        ``batch`` (as in the authors' runs: neither its 896 weights nor its running statistics are
        clipped or noised, and the result says so) or ``none``.
      convolution: ``products`` (matrix products), ``xla`` (XLA's convolution), ``direct`` (XLA's,
        with gradients that are such convolutions too) or ``auto``: on a CPU products, or direct
        where they would leave the cache; else XLA's. Equal up to rounding.
    """

    name: ClassVar[str] = "cnn3"
    summary: ClassVar[str] = "three convolutions and four dense layers, for CIFAR-10 (PAUSE)"

    norm: str = static(default="group", choices=NORMS)
    convolution: str = static(default="auto", choices=FORMS)

    def module(self, num_outputs: int) -> nn.Module:
        return _Cnn(
            widths=(32, 64, 128),
            pooled=(0, 1, 2),
            hidden=(128, 64, 32),
            norm=self.norm,
            convolution=self.convolution,
            num_outputs=num_outputs,
        )


class Cnn2(Model):
    """Two 3x3 valid convolutions (32, 64), one pooling, one dense layer of 128.

    The network of "Adaptive Federated Optimization" (Reddi et al., 2021) for EMNIST, which the
    CIFAR-10 benchmark of pfl-research uses too, without dropout and with this library's initial
    weights.

    Attributes:
      convolution: as in :class:`Cnn3`.
    """

    name: ClassVar[str] = "cnn2"
    summary: ClassVar[str] = "two convolutions and two dense layers (Reddi et al., pfl-research)"

    convolution: str = static(default="auto", choices=FORMS)

    def module(self, num_outputs: int) -> nn.Module:
        return _Cnn(
            widths=(32, 64),
            pooled=(1,),
            hidden=(128,),
            norm="none",
            convolution=self.convolution,
            num_outputs=num_outputs,
        )


class _Gru(nn.Module):
    embedding: int
    hidden: int
    num_outputs: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        vectors = nn.Embed(self.num_outputs, self.embedding, name="embedding")(x)
        states: Any = nn.RNN(nn.GRUCell(self.hidden), name="gru")(vectors)
        return nn.Dense(self.num_outputs, name="output")(states)


class Gru(Model):
    """Embedding, a gated recurrent unit, an affine layer: tokens [B, L] to outputs [B, L, V].

    Attributes:
      embedding: entries of a token's vector.
      hidden: entries of the state.
    """

    name: ClassVar[str] = "gru"
    summary: ClassVar[str] = "a gated recurrent unit, for tokens"
    takes_tokens: ClassVar[bool] = True

    embedding: int = static(default=16, at_least=1)
    hidden: int = static(default=64, at_least=1)

    def module(self, num_outputs: int) -> nn.Module:
        return _Gru(self.embedding, self.hidden, num_outputs)
