"""Model configs and the pure functions of their Flax modules."""

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

# Possible names of a module's training flag. True marks a flag that is False during training.
_TRAIN_WORDS = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "use_running_average": True,
}
# Normalisation layers in the library's models.
NORMS = ("group", "batch", "none")


class Network(NamedTuple):
    """Pure functions that define a model.

    Attributes:
      init: (key, inputs [B, ...]) -> variables, a dict of collections. Only updates of the
        ``params`` collection go through the privacy mechanism.
      train: (variables, inputs, mask, key) -> (outputs, new values of all collections other than
        ``params`` and ``clear``). ``mask`` is bool [B], False for padding rows, which must not
        enter batch statistics. ``key`` is the dropout key, or None if ``draws`` is False.
      predict: (variables, inputs) -> outputs.
      draws: whether training draws random numbers.
    """

    init: Callable[[Array, Array], Variables]
    train: Callable[[Variables, Array, Array, Array | None], tuple[Array, Variables]]
    predict: Callable[[Variables, Array], Array]
    draws: bool


def linen_network(module: nn.Module, *, draws: bool) -> Network:
    """Return a ``flax.linen`` module's pure functions. ``train`` uses a key if ``draws`` is True.

    ``module.__call__`` takes the inputs and, optionally, ``mask`` and flags in ``_TRAIN_WORDS``.
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
    """Base class for model configs."""

    takes_tokens: ClassVar[bool] = False  # whether the model accepts integer inputs
    draws: ClassVar[bool] = False  # whether training draws random numbers (dropout)

    def module(self, num_outputs: int) -> nn.Module:
        """Return the Flax module, which maps inputs [B, ...] to outputs [B, ..., num_outputs].

        The module's ``__call__`` may also take ``train`` (bool) and ``mask`` (see ``Network``).
        """
        raise NotImplementedError

    def network(self, num_outputs: int) -> Network:
        """Return the pure functions of the module."""
        return linen_network(self.module(num_outputs), draws=self.draws)


class Linear(Model):
    """Linear model with a single affine layer."""

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "one affine layer"

    def module(self, num_outputs: int) -> nn.Module:
        from pause_jax.learning import modules

        return modules.DenseNetwork(hidden=(), num_outputs=num_outputs)


class Mlp(Model):
    """Multilayer perceptron with ReLU, by default the authors' 25,818-weight network for MNIST.

    Attributes:
      hidden: hidden layer widths.
    """

    name: ClassVar[str] = "mlp"
    summary: ClassVar[str] = "fully connected with ReLU, widths 32 and 16 by default (PAUSE)"

    hidden: tuple[int, ...] = static(default=(32, 16), at_least=1)

    def module(self, num_outputs: int) -> nn.Module:
        from pause_jax.learning import modules

        return modules.DenseNetwork(hidden=self.hidden, num_outputs=num_outputs)


class Cnn3(Model):
    """Convolutional network with three convolutions and four dense layers, for 32x32 images.

    Each unpadded 3x3 convolution (32, 64, 128 features) is followed by 2x2 max-pooling. Hidden
    dense layers have 128, 64 and 32 features. All layers except the last use ReLU and ``norm``.

    Attributes:
      norm: ``group``, ``batch`` or ``none``. ``group`` uses group norm after convolutions and layer
        norm after dense layers. Updates to norm weights go through the privacy mechanism. ``batch``
        uses batch norm, as in the authors' runs. Its running statistics and the updates to its 896
        weights are sent without clipping or noise. ``Result.unnoised`` lists these leaves.
      convolution: ``products`` (matrix products), ``xla`` (XLA's convolution), ``direct`` (XLA's
        convolution, in a loop over clients) or ``auto``, which selects one of the three based on
        the device and the shapes. All choices give the same results up to rounding.
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
    """Convolutional network with two convolutions and two dense layers, for images.

    This is the EMNIST network of "Adaptive Federated Optimization" (Reddi et al., 2021) and the
    CIFAR-10 network of pfl-research, but with this library's weight initialisation and no dropout.

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
    """Recurrent network (embedding, GRU, affine layer) for tokens [B, L], with outputs [B, L, V].

    Attributes:
      embedding: token embedding size.
      hidden: recurrent state size.
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
    """Standard CIFAR-10 variant of ResNet-18 (He et al., 2016), used for BSFL Fig. 9.

    A 3x3 convolution with stride 1 replaces the 7x7 convolution and the max-pooling. BSFL does not
    specify its ResNet-18 variant. Images may have any size.

    Attributes:
      width: number of channels in the first stage, doubled in each later stage.
      norm: as in :class:`Cnn3`. He et al. use ``batch``.
      convolution: as in :class:`Cnn3`.
    """

    name: ClassVar[str] = "resnet18"
    summary: ClassVar[str] = "ResNet-18 for 32x32 images, 11,173,962 weights (BSFL Fig. 9)"

    width: int = static(default=64, at_least=1)
    norm: str = static(default="group", choices=NORMS)
    convolution: str = static(default="auto", choices=FORMS)

    def check(self, path: str, sizes: Sizes) -> None:
        if self.norm == "group" and self.width % GROUPS:
            raise ConfigError(
                f"{path}.width = {self.width}: must be a multiple of {GROUPS}, the number of "
                f"groups in group norm. Use {max(self.width // GROUPS, 1) * GROUPS}, or another "
                "norm."
            )

    def module(self, num_outputs: int) -> nn.Module:
        from pause_jax.learning import modules

        return modules.ResNetwork(
            width=self.width, norm=self.norm, convolution=self.convolution, num_outputs=num_outputs
        )
