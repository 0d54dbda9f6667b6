"""Configs of models, and the pure functions that a model's Flax module becomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from jax import Array

from pause_jax.base.struct import Config, ConfigError, Sizes, static
from pause_jax.learning.convolution import FORMS
from pause_jax.learning.learner import GROUPS, TRAINED, Variables

if TYPE_CHECKING:
    import flax.linen as nn

# How a module may call what says that it is trained, and whether that word means the opposite.
_TRAIN_WORDS = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "use_running_average": True,
}
# Normalisation layers of the library's models.
NORMS = ("group", "batch", "none")


class Network(NamedTuple):
    """A model.

    Attributes:
      init: (key, inputs [B, ...]) -> variables: a dictionary with the collection ``params``, whose
        updates are released through the privacy mechanism, and perhaps others, whose are not.
      train: (variables, inputs, mask, key) -> (outputs, changed collections other than ``params``
        and ``clear``). ``mask`` is bool [B], False for rows that only fill up a batch and must not
        enter batch statistics; the key is for dropout, None for a model that does not draw.
      predict: (variables, inputs) -> outputs.
      draws: whether training draws random numbers.
    """

    init: Callable[[Array, Array], Variables]
    train: Callable[[Variables, Array, Array, Array | None], tuple[Array, Variables]]
    predict: Callable[[Variables, Array], Array]
    draws: bool


def linen_network(module: nn.Module, *, draws: bool) -> Network:
    """The network of a ``flax.linen`` module; ``draws`` if it asks for ``dropout`` in training.

    Its ``__call__`` takes the inputs and, optionally, one of ``train``, ``training``,
    ``is_training``, ``deterministic`` and ``use_running_average``, and ``mask``.
    """
    words = frozenset(inspect.signature(type(module).__call__).parameters)

    def init(key: Array, x: Array) -> Variables:
        return dict(module.init(key, x, **_flags(words, train=False)))

    def train(
        variables: Variables, x: Array, mask: Array, key: Array | None
    ) -> tuple[Array, Variables]:
        rest = [name for name in variables if name not in TRAINED]
        flags = _flags(words, train=True)
        if "mask" in words:
            flags["mask"] = mask
        rngs = None if key is None else {"dropout": key}
        outputs, changed = module.apply(variables, x, rngs=rngs, mutable=rest, **flags)
        return outputs, dict(changed)

    def predict(variables: Variables, x: Array) -> Array:
        outputs: Any = module.apply(variables, x, **_flags(words, train=False))
        return outputs

    return Network(init, train, predict, draws)


def _flags(words: frozenset[str], *, train: bool) -> dict[str, Any]:
    return {word: train ^ opposite for word, opposite in _TRAIN_WORDS.items() if word in words}


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
        from pause_jax.learning import modules

        return modules.DenseNetwork(hidden=(), num_outputs=num_outputs)


class Mlp(Model):
    """Fully connected with relu; (32, 16) on MNIST is the authors' 25,818-parameter network.

    Attributes:
      hidden: widths of the hidden layers.
    """

    name: ClassVar[str] = "mlp"
    summary: ClassVar[str] = "fully connected, relu (32, 16 as in the PAUSE runs)"

    hidden: tuple[int, ...] = static(default=(32, 16), at_least=1)

    def module(self, num_outputs: int) -> nn.Module:
        from pause_jax.learning import modules

        return modules.DenseNetwork(hidden=self.hidden, num_outputs=num_outputs)


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
        from pause_jax.learning import modules

        return modules.ConvolutionalNetwork(
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
        from pause_jax.learning import modules

        return modules.ConvolutionalNetwork(
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
        from pause_jax.learning import modules

        return modules.GruNetwork(self.embedding, self.hidden, num_outputs)


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
        from pause_jax.learning import modules

        return modules.ResNetwork(
            width=self.width, norm=self.norm, convolution=self.convolution, num_outputs=num_outputs
        )
