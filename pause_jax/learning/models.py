"""Models. A config makes the Flax module; the module is applied to a batch [B, ...]."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pause_jax.base.struct import Config, ConfigError, Sizes, static
from pause_jax.learning.convolution import FORMS
from pause_jax.learning.network import GROUPS, NORMS, Network, linen_network

if TYPE_CHECKING:
    import flax.linen as nn


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
        from pause_jax.learning import networks

        return networks.DenseNetwork(hidden=(), num_outputs=num_outputs)


class Mlp(Model):
    """Fully connected with relu; (32, 16) on MNIST is the authors' 25,818-parameter network.

    Attributes:
      hidden: widths of the hidden layers.
    """

    name: ClassVar[str] = "mlp"
    summary: ClassVar[str] = "fully connected, relu (32, 16 as in the PAUSE runs)"

    hidden: tuple[int, ...] = static(default=(32, 16), at_least=1)

    def module(self, num_outputs: int) -> nn.Module:
        from pause_jax.learning import networks

        return networks.DenseNetwork(hidden=self.hidden, num_outputs=num_outputs)


class Cnn3(Model):
    """Three 3x3 valid convolutions (32, 64, 128) with pooling, then 128-64-32: for 32x32 images.

    Each of the six is followed by relu and a norm. 170,474 weights with one.

    Attributes:
      norm: ``group`` (group norms after the convolutions, layer norms after the dense layers: no
        running statistics, and all weights go through the privacy mechanism),
        ``batch`` (as in the authors' runs: neither its 896 weights nor its running statistics are
        clipped or noised, and the result says so) or ``none``.
      convolution: ``products`` (matrix products), ``xla`` (XLA's convolution), ``direct`` (XLA's,
        with gradients that are such convolutions too) or ``auto``: on CPUs products, or direct
        where they would leave the cache, on GPUs products or XLA's by the shapes. Equal up to
        rounding.
    """

    name: ClassVar[str] = "cnn3"
    summary: ClassVar[str] = "three convolutions and four dense layers, for CIFAR-10 (PAUSE)"

    norm: str = static(default="group", choices=NORMS)
    convolution: str = static(default="auto", choices=FORMS)

    def module(self, num_outputs: int) -> nn.Module:
        from pause_jax.learning import networks

        return networks.ConvolutionalNetwork(
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
        from pause_jax.learning import networks

        return networks.ConvolutionalNetwork(
            widths=(32, 64),
            pooled=(1,),
            hidden=(128,),
            norm="none",
            convolution=self.convolution,
            num_outputs=num_outputs,
        )


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
        from pause_jax.learning import networks

        return networks.GruNetwork(self.embedding, self.hidden, num_outputs)


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
        from pause_jax.learning import resnet

        return resnet.ResNetwork(
            width=self.width, norm=self.norm, convolution=self.convolution, num_outputs=num_outputs
        )
