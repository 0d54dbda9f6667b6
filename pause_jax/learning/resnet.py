"""ResNet-18 for small images, as a Flax model."""

from __future__ import annotations

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import ConfigError, Sizes, static
from pause_jax.learning.convolution import FORMS, convolution
from pause_jax.learning.models import Model, dense, kernel_init
from pause_jax.learning.normalisation import GROUPS, NORMS, normalise

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


class _ResNet(nn.Module):
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


class ResNet18(Model):
    """ResNet-18 (He et al., 2016) as it is common for CIFAR-10, which BSFL trains (Fig. 9).

    A 3x3 convolution of stride 1 in place of the 7x7 one and its pooling; four stages of two basic
    blocks, the later three halving the image; the mean over the image; one affine layer. For 32x32
    colour images and 10 classes 11,173,962 weights with a norm, 9,600 of them its own.
    Images of any size will do.

    BSFL does not print its variant. Initial weights are PyTorch's default, as of all models here.

    Attributes:
      width: channels of the first stage; each stage has twice those of the one before.
      norm: ``group`` (no running statistics; all weights go through the privacy mechanism),
        ``batch`` (as published: neither its weights nor its running statistics are clipped or
        noised, and the result says so) or ``none``.
      convolution: as in :class:`Cnn3`.
    """

    name: ClassVar[str] = "resnet18"
    summary: ClassVar[str] = "ResNet-18 for 32x32 images, 11,173,962 weights (BSFL Fig. 9)"

    width: int = static(default=64, at_least=1)
    norm: str = static(default="group", choices=NORMS)
    convolution: str = static(default="auto", choices=FORMS)

    def check(self, path: str, sizes: Sizes) -> None:
        """Group norm needs groups of equal size."""
        if self.norm == "group" and self.width % GROUPS:
            raise ConfigError(
                f"{path}.width = {self.width}: must be a multiple of {GROUPS}, the groups of group "
                f"norm. Use {max(self.width // GROUPS, 1) * GROUPS}, or another norm."
            )

    def module(self, num_outputs: int) -> nn.Module:
        return _ResNet(
            width=self.width, norm=self.norm, convolution=self.convolution, num_outputs=num_outputs
        )
