"""Parts of a model that clients train and send. Weights that are not trained are in ``frozen``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.registry import choices, label
from pause_jax.base.spelling import listed, shown
from pause_jax.base.struct import Config, ConfigError, number, static
from pause_jax.learning.learner import (
    FROZEN,
    Variables,
    named_leaves,
    output_layer_path,
    path_name,
    sent_part,
)
from pause_jax.learning.models import Network
from pause_jax.rng import keys


class TrainedPart(Config):
    """Set of model weights that clients train, by default all weights."""

    name: ClassVar[str] = "all"
    summary: ClassVar[str] = "all weights"

    def leaves(self, params: Any) -> set[str]:
        """Return the paths of the leaves to train, or raise ConfigError if there are none."""
        return set(named_leaves(params))

    def split(self, key: Array, params: Any) -> tuple[Any, Any]:
        """Split weights into (trained, frozen), with None in place of the other part's leaves."""
        chosen = self.leaves(params)

        def part(trained: bool) -> Any:
            return jax.tree_util.tree_map_with_path(
                lambda path, leaf: leaf if (path_name(path) in chosen) == trained else None, params
            )

        return part(True), part(False)

    def merge(self, trained: Any, frozen: Any) -> Any:
        """Merge trained and frozen weights into the full model's weights."""
        return jax.tree.map(
            lambda own, other: other if own is None else own, trained, frozen,
            is_leaf=lambda leaf: leaf is None,
        )  # fmt: skip

    def check_model(self, variables: Variables) -> None:
        """Raise ConfigError if the trained part does not fit a model with these variable shapes."""
        _, frozen = jax.eval_shape(self.split, jax.random.key(0), variables["params"])
        others = [name for name in variables if name != "params"]
        if jax.tree.leaves(frozen) and others:
            raise ConfigError(
                f"learning.trained = {label(self)}: the model has the collection {others[0]}, "
                "whose updates would be sent without clipping or noise. Use group norm, or "
                "learning.trained = 'all'."
            )

    def network(self, network: Network) -> Network:
        """Return a network whose variables are split into trained and frozen variables."""

        def init(key: Array, x: Array) -> Variables:
            variables = network.init(key, x)
            trained, frozen = self.split(key, variables["params"])
            rest = {FROZEN: frozen} if jax.tree.leaves(frozen) else {}
            return {**variables, "params": trained, **rest}

        return network._replace(
            init=init,
            train=lambda variables, *batch: network.train(self.whole(variables), *batch),
            predict=lambda variables, x: network.predict(self.whole(variables), x),
        )

    def whole(self, variables: Variables) -> Variables:
        """Merge split variables into the full model's variables."""
        if FROZEN not in variables:
            return variables
        return {"params": self.merge(variables["params"], variables[FROZEN])}


class Head(TrainedPart):
    """Output layer: the affine layer named ``output``, or the model's only affine layer."""

    name: ClassVar[str] = "head"
    summary: ClassVar[str] = "the output layer"

    def leaves(self, params: Any) -> set[str]:
        layer = output_layer_path(params)
        if layer is None:
            raise ConfigError(
                "learning.trained = head: the model must have a unique output layer. Name an "
                "affine layer 'output', or set learning.trained to a regular expression that "
                f"matches any of {listed(named_leaves(params))}."
            )
        return {f"{layer}kernel", f"{layer}bias"}


class Matching(TrainedPart):
    """Leaves whose path, such as ``hidden_0/kernel``, matches a regular expression.

    Attributes:
      pattern: regular expression, which may match anywhere in the path.
    """

    name: ClassVar[str] = "matching"
    summary: ClassVar[str] = "leaves whose path matches a regular expression"

    pattern: str = static(default=".*")

    def leaves(self, params: Any) -> set[str]:
        return _matching("pattern", self.pattern, named_leaves(params))


class Lora(TrainedPart):
    """Low-rank adaptation of dense kernels (Hu et al., 2021): ``kernel + scale * a @ b``.

    Clients train only two factors per adapted kernel [H, C]: ``a`` [H, rank], initially drawn from
    N(0, 1 / H), and ``b`` [rank, C], initially 0. The server averages factors, not products.

    Attributes:
      rank: rank of the change to each kernel.
      targets: regular expression for the paths of 2-D leaves named ``kernel``.
      scale: multiplier applied to each product ``a @ b`` (alpha / rank in the LoRA paper).
    """

    name: ClassVar[str] = "lora"
    summary: ClassVar[str] = "low-rank changes to dense kernels (LoRA)"

    rank: int = static(default=4, at_least=1)
    targets: str = static(default=".*")
    scale: float = number(default=1.0, above=0)

    def leaves(self, params: Any) -> set[str]:
        kernels = {
            name: leaf.shape
            for name, leaf in named_leaves(params).items()
            if leaf.ndim == 2 and name.split("/")[-1] == "kernel"
        }
        adapted = _matching("targets", self.targets, kernels)
        for name in sorted(adapted):
            if self.rank > min(kernels[name]):
                raise ConfigError(
                    f"learning.trained.rank = {self.rank}: must be <= {min(kernels[name])}, the "
                    f"smaller dimension of {name}. Lower rank, or exclude {name} from targets."
                )
        return adapted

    def split(self, key: Array, params: Any) -> tuple[Any, Any]:
        places = {name: place for place, name in enumerate(sorted(self.leaves(params)))}
        key = keys.trained_part(key)

        def factors(path: Any, kernel: Array) -> dict[str, Array] | None:
            place = places.get(path_name(path))
            if place is None:
                return None
            height, width = kernel.shape
            a = jax.random.normal(jax.random.fold_in(key, place), (height, self.rank), kernel.dtype)
            return {"a": a / height**0.5, "b": jnp.zeros((self.rank, width), kernel.dtype)}

        return jax.tree_util.tree_map_with_path(factors, params), params

    def merge(self, trained: Any, frozen: Any) -> Any:
        def adapted(weights: Array, factors: dict[str, Array] | None) -> Array:
            if factors is None:
                return weights
            return weights + self.scale * (factors["a"] @ factors["b"])

        return jax.tree.map(adapted, frozen, trained)


def part_of(trained: Any) -> Any:
    """Convert a part's name or a regular expression to a config. Return other values unchanged."""
    if not isinstance(trained, str):
        return trained
    named = choices(TrainedPart).get(trained)
    return Matching(pattern=trained) if named is None else named()


def with_frozen(network: Network, variables: Variables) -> tuple[Network, Variables]:
    """Move ``frozen`` from the variables into the network. All clients then share one copy."""
    if FROZEN not in variables:
        return network, variables
    frozen = {FROZEN: variables[FROZEN]}
    bound = network._replace(
        train=lambda sent, *batch: network.train({**sent, **frozen}, *batch),
        predict=lambda sent, x: network.predict({**sent, **frozen}, x),
    )
    return bound, sent_part(variables)


def _matching(field: str, pattern: str, names: Iterable[str]) -> set[str]:
    where = f"learning.trained.{field} = {shown(pattern)}"
    try:
        matching = {name for name in names if re.search(pattern, name)}
    except re.error as error:
        raise ConfigError(f"{where}: must be a regular expression ({error}).") from None
    if not matching:
        raise ConfigError(
            f"{where}: must match one of "
            f"{listed(names) or 'the dense kernels, but the model has none'}."
        )
    return matching
