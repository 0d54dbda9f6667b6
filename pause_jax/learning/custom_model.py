"""A custom Flax module as the model of a config."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, ClassVar, Self

from pause_jax.base.registry import resolved, text_of
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError, Reference, Sizes, static
from pause_jax.learning.models import Model
from pause_jax.learning.network import Network, linen_network, nnx_network


class _Unhashable:
    """A module without a hash, as it has lists in it: it equals itself alone."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unhashable) and other.value is self.value

    def __repr__(self) -> str:
        return text_of(self.value)


class FlaxModel(Model):
    """A custom ``flax.linen`` or ``flax.nnx`` module: :meth:`of`.

    Every parameter goes through the privacy mechanism; what else a module carries from batch to
    batch (running statistics) leaves the clients as it is, and the result names it. Dropout works.
    A ``__call__`` that takes ``mask`` [B] gets False for rows that only fill up a batch.

    Attributes:
      source: a linen module, a class or a function that makes a module, or the text
        "package.module:name" of a loaded module or class, as in a config file (static).
      arguments: name and value of each argument that a class or a function is called with (static).
    """

    name: ClassVar[str] = "flax"
    summary: ClassVar[str] = "a custom linen or nnx module"
    takes_tokens: ClassVar[bool] = True

    source: Any = static(default=None, optional=True, kind=Reference)
    arguments: tuple[Any, ...] = static(default=(), kind=object)

    @classmethod
    def of(cls, module: Any, **arguments: Any) -> Self:
        """The model of a module.

        Args:
          module: a linen module; or a class or a function that makes a module of either kind. One
            that makes an nnx module must take ``rngs``.
          arguments: what else the class or the function is called with.

        Raises:
          ConfigError: for something else.

        Examples:
          >>> from flax import linen
          >>> from pause_jax.learning import FlaxModel, Learning
          >>> Learning(model=FlaxModel.of(linen.Dense, features=10)).model.arguments
          (('features', 10),)
        """
        try:
            hash(module)
        except TypeError:
            module = _Unhashable(module)
        made = cls(source=module, arguments=tuple(sorted(arguments.items())))
        made.check("", Sizes(1, 1, 1))
        return made

    def check(self, path: str, sizes: Sizes) -> None:
        where = f"{path}: " if path else ""
        pairs = self.arguments if isinstance(self.arguments, tuple) else ((),)
        if not all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in pairs
        ):
            raise ConfigError(
                f"{where}arguments = {shown(self.arguments)}: must be pairs of a name and a "
                'value, in a file [["width", 32]].'
            )
        try:
            hash((self.source, self.arguments))
        except TypeError:
            raise ConfigError(
                f"{where}FlaxModel of {self._label}: its arguments cannot be told from others; "
                "give tuples for lists."
            ) from None
        if _is_nnx_module(self._maker):
            raise ConfigError(
                f"{where}FlaxModel of an nnx module that was made already: give what makes it, "
                "FlaxModel.of(Net, width=32) or FlaxModel.of(lambda rngs: Net(32, rngs=rngs)), as "
                "every run draws its own initial weights."
            )
        if not _is_linen_module(self._maker) and not callable(self._maker):
            raise ConfigError(
                f"{where}FlaxModel of {self._label}: must be a linen module, or a class or "
                "function that makes one, or an nnx one from rngs."
            )
        self.network(0)

    @property
    def _label(self) -> str:
        given = self.source.value if isinstance(self.source, _Unhashable) else self.source
        return given if isinstance(given, str) else text_of(given).partition(" ")[0]

    @property
    def _maker(self) -> Any:
        if isinstance(self.source, str):
            kind = "a class of Flax modules (linen or nnx), or a linen module"
            return resolved("learning.model.source", self.source, _is_module, kind)
        return self.source.value if isinstance(self.source, _Unhashable) else self.source

    def network(self, num_outputs: int) -> Network:
        given = self._maker
        if _is_linen_module(given):
            return linen_network(given, draws=True)
        make = functools.partial(given, **dict(self.arguments))
        try:
            if _takes_rngs(given):
                return nnx_network(lambda rngs: make(rngs=rngs))
            module = make()
        except Exception as error:
            raise ConfigError(
                f"FlaxModel of {self._label}: cannot be made ({type(error).__name__}: {error}). "
                "Arguments go to FlaxModel.of(maker, name=value)."
            ) from error
        if not _is_linen_module(module):
            raise ConfigError(
                f"FlaxModel of {self._label}: makes {type(module).__name__}; must make a linen "
                "module, or take rngs and make an nnx one."
            )
        return linen_network(module, draws=True)


def _is_module(given: Any) -> bool:
    """Whether it is a linen module, or a class of linen or nnx modules."""
    modules = [sys.modules.get(name) for name in ("flax.linen", "flax.nnx")]
    kinds = tuple(module.Module for module in modules if module is not None)
    return issubclass(given, kinds) if isinstance(given, type) else issubclass(type(given), kinds)


def _is_linen_module(given: Any) -> bool:
    linen = sys.modules.get("flax.linen")  # who has made one has imported it
    return linen is not None and isinstance(given, linen.Module)


def _is_nnx_module(given: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(given, nnx.Module)


def _takes_rngs(maker: Any) -> bool:
    while isinstance(maker, functools.partial):
        maker = maker.func
    # Of an nnx class the signature is that of the metaclass, which takes anything.
    called = vars(maker).get("__init__", maker) if isinstance(maker, type) else maker
    return "rngs" in inspect.signature(called).parameters
