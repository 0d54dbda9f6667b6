"""A model as pure functions, whatever it was written in: ``linen`` or ``nnx``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.learning.learner import TRAINED, Variables

if TYPE_CHECKING:
    import flax.linen as nn
    from flax import nnx

# How a module may call what says that it is trained, and whether that word means the opposite.
_TRAIN_WORDS = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "use_running_average": True,
}
# Normalisation layers of the library's models, and the groups of channels of group norm.
NORMS = ("group", "batch", "none")
GROUPS = 8
# The collection of an nnx module's variables that are neither ``nnx.Param`` nor random numbers.
OTHERS = "others"


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


def nnx_network(make: Callable[[nnx.Rngs], nnx.Module]) -> Network:
    """The network of a ``flax.nnx`` module, which ``make`` makes from its random numbers.

    Its ``__call__`` takes the inputs, and optionally ``mask``. It is trained after
    ``module.train()`` and used after ``module.eval()``; every ``nnx.Param`` is trained, and all
    other variables but random numbers stand in the collection ``others``.
    """
    from flax import nnx  # only who uses it pays for its import

    def parts(module: nnx.Module) -> Any:
        return nnx.split(module, nnx.Param, nnx.RngState, ...)

    abstract: Any = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    takes_mask = "mask" in inspect.signature(type(abstract).__call__).parameters
    graph, params, numbers, others = parts(abstract)

    def plain(module: nnx.Module) -> Variables:
        _, params, _, others = parts(module)
        variables = {"params": nnx.to_pure_dict(params), OTHERS: nnx.to_pure_dict(others)}
        return {name: tree for name, tree in variables.items() if name == "params" or tree}

    def module_of(variables: Variables) -> nnx.Module:
        return nnx.merge(
            graph,
            _filled(params, variables["params"]),
            jax.tree.map(_any_number, numbers),
            _filled(others, variables.get(OTHERS, {})),
        )

    def init(key: Array, x: Array) -> Variables:
        return plain(make(nnx.Rngs(key)))

    def train(
        variables: Variables, x: Array, mask: Array, key: Array | None
    ) -> tuple[Array, Variables]:
        module: Any = module_of(variables)
        module.train()
        if key is not None:
            seeds: dict[str, Any] = dict.fromkeys(_streams(numbers), key)
            nnx.reseed(module, **seeds)
        outputs = module(x, mask=mask) if takes_mask else module(x)
        changed = plain(module)
        return outputs, {name: changed[name] for name in changed if name != "params"}

    def predict(variables: Variables, x: Array) -> Array:
        module: Any = module_of(variables)
        module.eval()
        return module(x)

    return Network(init, train, predict, draws=bool(jax.tree.leaves(numbers)))


def _flags(words: frozenset[str], *, train: bool) -> dict[str, Any]:
    return {word: train ^ opposite for word, opposite in _TRAIN_WORDS.items() if word in words}


def _filled(state: Any, values: dict[str, Any]) -> Any:
    from flax import nnx

    # Rebuilt first, as it is filled in place.
    own = jax.tree.map(lambda leaf: leaf, state)
    nnx.replace_by_pure_dict(own, values)
    return own


def _any_number(like: Any) -> Array:
    """A random number's state before it is seeded."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), like.shape)
    return jnp.zeros(like.shape, like.dtype)


def _streams(numbers: Any) -> set[str]:
    """Names of the random streams of a module."""
    from flax import nnx

    kept = jax.tree.leaves(numbers, is_leaf=lambda leaf: isinstance(leaf, nnx.RngState))
    return {leaf.tag for leaf in kept}
