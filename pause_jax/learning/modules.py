"""Flax modules for the library's models, imported on first use."""

from __future__ import annotations

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.learning.convolution import convolve, gradient_stored, max_pool
from pause_jax.learning.normalisation import normalise

# Strides of the two blocks in each stage of a ResNet-18.
_STRIDES = ((1, 1), (2, 1), (2, 1), (2, 1))
# PyTorch's default initialiser for linear and convolution kernels, as in the authors' runs. With
# jit, the initialiser is traced only once per shape.
kernel_init = jax.jit(
    nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"), static_argnums=(1, 2)
)


@functools.cache
def _bias_init(fan_in: int) -> nn.initializers.Initializer:
    bound = fan_in**-0.5

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def dense(x: Array, features: int, name: str) -> Array:
    """Apply an affine layer with PyTorch's default initial weights."""
    layer = nn.Dense(
        features, kernel_init=kernel_init, bias_init=_bias_init(x.shape[-1]), name=name
    )
    return layer(x)


class DenseNetwork(nn.Module):
    """Multilayer perceptron with ReLU and an affine output layer."""

    hidden: tuple[int, ...]
    num_outputs: int

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None) -> Array:
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.hidden):
            x = nn.relu(dense(x, width, f"hidden_{i}"))
        return dense(x, self.num_outputs, "output")


class _ConvPool(nn.Module):
    """Unpadded 3x3 convolution with ``nn.Conv`` parameters and optional 2x2 max-pooling."""

    features: int
    pooled: bool
    convolution: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (3, 3, x.shape[-1], self.features)
        kernel = self.param("kernel", kernel_init, shape)
        bias = self.param("bias", _bias_init(math.prod(shape[:-1])), shape[-1:])
        x = convolve(self.convolution, x, kernel)
        # Adding the bias and applying ReLU after pooling is equivalent and costs a quarter as much.
        return gradient_stored((max_pool(x) if self.pooled else x) + bias[None, None, None])


class ConvolutionalNetwork(nn.Module):
    """Network of unpadded 3x3 convolutions, hidden dense layers and an affine output layer.

    All layers except the last use ReLU and ``norm``.
    """

    widths: tuple[int, ...]
    pooled: tuple[int, ...]  # indices of the convolutions that are followed by max-pooling
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


class _Convolution(nn.Module):
    """Convolution without bias. Inputs are zero-padded by ``size // 2`` on every side."""

    features: int
    size: int
    stride: int
    convolution: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", kernel_init, shape, jnp.float32)
        return convolve(self.convolution, x, kernel, self.stride, self.size // 2)


class _Block(nn.Module):
    """Basic residual block with a shortcut and two 3x3 convolutions, each followed by ``norm``."""

    features: int
    stride: int
    norm: str
    convolution: str

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None) -> Array:
        def layer(x: Array, size: int, stride: int, name: str) -> Array:
            convolution = _Convolution(
                self.features, size, stride, self.convolution, name=f"conv_{name}"
            )
            y = convolution(x)
            return normalise(y, self.norm, f"norm_{name}", train, mask)

        y = nn.relu(layer(x, 3, self.stride, "0"))
        y = layer(y, 3, 1, "1")
        if x.shape != y.shape:
            x = layer(x, 1, self.stride, "shortcut")
        return nn.relu(x + y)


class ResNetwork(nn.Module):
    """ResNet-18 with four stages of two basic blocks, where each later stage doubles the width."""

    width: int
    norm: str
    convolution: str
    num_outputs: int

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None) -> Array:
        x = _Convolution(self.width, 3, 1, self.convolution, name="conv")(x)
        x = nn.relu(normalise(x, self.norm, "norm", train, mask))
        for stage, strides in enumerate(_STRIDES):
            for i, stride in enumerate(strides):
                features = self.width * 2**stage
                block = _Block(
                    features, stride, self.norm, self.convolution, name=f"stage_{stage}_block_{i}"
                )
                x = block(x, train, mask)
        return dense(jnp.mean(x, axis=(1, 2)), self.num_outputs, "output")


class GruNetwork(nn.Module):
    """Recurrent network with an embedding, a gated recurrent unit and an affine layer."""

    embedding: int
    hidden: int
    num_outputs: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        vectors = nn.Embed(self.num_outputs, self.embedding, name="embedding")(x)
        # Flax's default orthogonal initialiser calls LAPACK (see ``inverse_and_log_det``).
        cell = nn.GRUCell(self.hidden, recurrent_kernel_init=nn.initializers.lecun_normal())
        states: Any = nn.RNN(cell, name="gru")(vectors)
        return nn.Dense(self.num_outputs, name="output")(states)
