"""ResNet-18 for small images, as a Flax module."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from pause_jax.learning.convolution import convolution
from pause_jax.learning.networks import dense, kernel_init
from pause_jax.learning.normalisation import normalise

# Of the blocks of each of the four stages; the width doubles with the stage.
_STRIDES = ((1, 1), (2, 1), (2, 1), (2, 1))


class _Block(nn.Module):
    """Two 3x3 convolutions and their norms, beside a shortcut: the basic block."""

    features: int
    stride: int
    norm: str
    convolution: str

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array | None) -> Array:
        def layer(x: Array, size: int, stride: int, name: str) -> Array:
            y = _convolve(x, self.features, size, stride, self.convolution, f"conv_{name}")
            return normalise(y, self.norm, f"norm_{name}", train, mask)

        y = nn.relu(layer(x, 3, self.stride, "0"))
        y = layer(y, 3, 1, "1")
        if x.shape != y.shape:
            x = layer(x, 1, self.stride, "shortcut")
        return nn.relu(x + y)


class ResNetwork(nn.Module):
    """Four stages of two basic blocks; the width doubles with the stage."""

    width: int
    norm: str
    convolution: str
    num_outputs: int

    @nn.compact
    def __call__(self, x: Array, train: bool = False, mask: Array | None = None) -> Array:
        x = _convolve(x, self.width, 3, 1, self.convolution, "conv")
        x = nn.relu(normalise(x, self.norm, "norm", train, mask))
        for stage, strides in enumerate(_STRIDES):
            for i, stride in enumerate(strides):
                features = self.width * 2**stage
                block = _Block(
                    features, stride, self.norm, self.convolution, name=f"stage_{stage}_block_{i}"
                )
                x = block(x, train, mask)
        return dense(jnp.mean(x, axis=(1, 2)), self.num_outputs, "output")


def _convolve(x: Array, features: int, size: int, stride: int, form: str, name: str) -> Array:
    """A convolution without bias, filled up by ``size // 2`` on every side, whatever the stride."""
    edge = (size // 2, size // 2)
    layer = nn.Conv(
        features,
        (size, size),
        strides=(stride, stride),
        padding=(edge, edge),
        use_bias=False,
        kernel_init=kernel_init,
        conv_general_dilated=convolution(form),
        name=name,
    )
    return layer(x)
