"""Model config for custom Flax modules (``linen`` or ``nnx``)."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.registry import resolved, text_of
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError, Sizes, static
from pause_jax.learning.learner import Variables
from pause_jax.learning.models import Model, Network, linen_network

if TYPE_CHECKING:
    from flax import nnx

OTHERS = "others"  # see ``nnx_network``


class _Unhashable:
    """Wrapper that hashes an unhashable module, such as one with list attributes, by identity."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unhashable) and other.value is self.value

    def __repr__(self) -> str:
        return text_of(self.value)


class FlaxModel(Model):
    """Model config for a custom ``flax.linen`` or ``flax.nnx`` module. Create one with :meth:`of`.

    Updates of variables other than parameters, such as running statistics, are sent without
    clipping or noise (see ``Result.unnoised``). Dropout is supported. ``__call__`` may have an
    optional argument ``mask``, bool [B], which in training is False for a batch's padding rows.

    Attributes:
      source: linen module, or a class or function that returns a module (static). A string
        "package.module:name" names an imported linen module or module class.
      arguments: keyword arguments for the class or function, as (name, value) pairs (static).
    """

    name: ClassVar[str] = "flax"
    summary: ClassVar[str] = "a custom linen or nnx module"
    takes_tokens: ClassVar[bool] = True

    source: Any = static(default=None, optional=True, kind=object)
    arguments: tuple[Any, ...] = static(default=(), kind=object)

    @classmethod
    def of(cls, module: Any, **arguments: Any) -> Self:
        """Create a model config from a Flax module.

        Args:
          module: linen module, or a class or function that returns a linen or nnx module. A class
            or function that creates an nnx module must accept ``rngs``.
          arguments: other keyword arguments for the class or function.

        Raises:
          ConfigError: if ``module`` is not supported, or an argument is unhashable or rejected.

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
                f"{where}arguments = {shown(self.arguments)}: must be (name, value) pairs, such as "
                '[["width", 32]] in a file.'
            )
        try:
            hash((self.source, self.arguments))
        except TypeError:
            raise ConfigError(
                f"{where}FlaxModel of {self._label}: arguments must be hashable. Pass tuples "
                "instead of lists."
            ) from None
        if isinstance(self._maker, _classes("flax.nnx")):
            raise ConfigError(
                f"{where}FlaxModel: must be given a class or function, not an nnx module instance, "
                "because every run draws its own initial weights. Use FlaxModel.of(Net, width=32) "
                "or FlaxModel.of(lambda rngs: Net(32, rngs=rngs))."
            )
        if not _is_linen_module(self._maker) and not callable(self._maker):
            raise ConfigError(
                f"{where}FlaxModel of {self._label}: must be a linen module, or a class or "
                "function that returns a linen or nnx module."
            )
        self.network(0)

    @property
    def _label(self) -> str:
        if isinstance(self.source, str):
            return self.source
        return text_of(self._maker).partition(" ")[0]

    @property
    def _maker(self) -> Any:
        if isinstance(self.source, str):
            kind = "a linen module, or a linen or nnx module class"
            return resolved("learning.model.source", self.source, _is_module, kind)
        return self.source.value if isinstance(self.source, _Unhashable) else self.source

    def network(self, num_outputs: int) -> Network:
        maker = self._maker
        if _is_linen_module(maker):
            return linen_network(maker, draws=True)
        make = functools.partial(maker, **dict(self.arguments))
        try:
            if _takes_rngs(maker):
                return nnx_network(lambda rngs: make(rngs=rngs))
            module = make()
        except Exception as error:
            raise ConfigError(
                f"FlaxModel of {self._label}: could not be created ({type(error).__name__}: "
                f"{error}). Pass arguments with FlaxModel.of(maker, name=value)."
            ) from error
        if not _is_linen_module(module):
            raise ConfigError(
                f"FlaxModel of {self._label}: returned {type(module).__name__}, but must return a "
                "linen module, or take rngs and return an nnx module."
            )
        return linen_network(module, draws=True)


def _classes(*libraries: str) -> tuple[type, ...]:
    """Return the ``Module`` class of each library in ``libraries`` that is already imported."""
    loaded = [sys.modules[name] for name in libraries if name in sys.modules]
    return tuple(library.Module for library in loaded)


def _is_linen_module(value: Any) -> bool:
    return isinstance(value, _classes("flax.linen"))


def _is_module(value: Any) -> bool:
    kind = value if isinstance(value, type) else type(value)
    return issubclass(kind, _classes("flax.linen", "flax.nnx"))


def _takes_rngs(maker: Any) -> bool:
    while isinstance(maker, functools.partial):
        maker = maker.func
    # For an nnx class, ``inspect.signature(maker)`` would return only ``(*args, **kwargs)``.
    called = vars(maker).get("__init__", maker) if isinstance(maker, type) else maker
    return "rngs" in inspect.signature(called).parameters


def nnx_network(make: Callable[[nnx.Rngs], nnx.Module]) -> Network:
    """Return the pure functions of the ``nnx`` module that ``make`` creates from ``nnx.Rngs``.

    The module's ``__call__`` takes the inputs and, optionally, ``mask``. Every ``nnx.Param`` is
    trained. All other variables, except RNG state, are in the ``others`` collection.
    """
    from flax import nnx  # imported here, because only nnx models need it

    def parts(module: nnx.Module) -> Any:
        return nnx.split(module, nnx.Param, nnx.RngState, ...)

    def filled(state: Any, values: dict[str, Any]) -> Any:
        copy = jax.tree.map(lambda leaf: leaf, state)  # replace_by_pure_dict mutates its argument
        nnx.replace_by_pure_dict(copy, values)
        return copy

    abstract: Any = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    takes_mask = "mask" in inspect.signature(type(abstract).__call__).parameters
    graph, params, numbers, others = parts(abstract)
    states = jax.tree.leaves(numbers, is_leaf=lambda leaf: isinstance(leaf, nnx.RngState))
    streams = {state.tag for state in states}

    def plain(module: nnx.Module) -> Variables:
        _, params, _, others = parts(module)
        variables = {"params": nnx.to_pure_dict(params), OTHERS: nnx.to_pure_dict(others)}
        return {name: tree for name, tree in variables.items() if name == "params" or tree}

    def module_of(variables: Variables) -> nnx.Module:
        return nnx.merge(
            graph,
            filled(params, variables["params"]),
            jax.tree.map(_any_number, numbers),
            filled(others, variables.get(OTHERS, {})),
        )

    def init(key: Array, x: Array) -> Variables:
        return plain(make(nnx.Rngs(key)))

    def train(
        variables: Variables, x: Array, mask: Array, key: Array | None
    ) -> tuple[Array, Variables]:
        module: Any = module_of(variables)
        module.train()
        if key is not None:
            seeds: dict[str, Any] = dict.fromkeys(streams, key)
            nnx.reseed(module, **seeds)
        outputs = module(x, mask=mask) if takes_mask else module(x)
        changed = plain(module)
        return outputs, {name: changed[name] for name in changed if name != "params"}

    def predict(variables: Variables, x: Array) -> Array:
        module: Any = module_of(variables)
        module.eval()
        return module(x)

    return Network(init, train, predict, draws=bool(jax.tree.leaves(numbers)))


def _any_number(like: Any) -> Array:
    """Return placeholder RNG state with the shape and dtype of ``like``."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), like.shape)
    return jnp.zeros(like.shape, like.dtype)
