"""Optimisers of the clients and of the server, from optax or custom."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.registry import resolved
from pause_jax.base.spelling import nearest, shown
from pause_jax.base.struct import Config, ConfigError, number

if TYPE_CHECKING:
    import optax

# They take more than a rate: a line search, a seed of their own.
_NOT_HERE = ("lbfgs", "noisy_sgd")


@functools.cache
def optimizers() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Those of optax that a learning rate is enough for, by name."""
    import optax

    found: dict[str, Callable[..., optax.GradientTransformation]] = {}
    for name, value in vars(optax).items():
        if not inspect.isfunction(value) or name.startswith("scale_by") or name in _NOT_HERE:
            continue
        given = list(inspect.signature(value).parameters.values())
        needed = {p.name for p in given if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
        if given and given[0].name == "learning_rate" and needed <= {"learning_rate"}:
            found[name] = value
    return found


# Those that take each weight by itself: its layer, or the rest of the model, does not count.
ELEMENTWISE = frozenset(
    (
        *("adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan"),
        *("amsgrad", "lion", "optimistic_adam", "optimistic_adam_v2"),
        *("optimistic_gradient_descent", "radam", "rmsprop", "rprop", "sgd", "sign_sgd"),
        *("signum", "yogi"),
    )
)
# Weights of a model that is moved as one vector: of a larger one, the copies take longer than the
# many small kernels do, of a smaller one, compiling those.
ONE_VECTOR = 2**13


def made(optimizer: Any, rate: Array | float) -> optax.GradientTransformation:
    """The transformation for a learning rate, which may be traced.

    ``optimizer`` is a name of optax's (``adam``, ``sgd``, ...), a function of the rate, a
    transformation, which has its rate in it, or "module:name" of one in a loaded module.

    Raises:
      ConfigError: for anything else, or an unknown name.
    """
    given = optimizer
    if isinstance(optimizer, str):
        names = optimizers()
        if optimizer in names:
            found = names[optimizer](rate)
            return _as_one_vector(found) if optimizer in ELEMENTWISE else found
        if ":" not in optimizer:
            raise ConfigError(
                f"learning.optimizer = {shown(optimizer)}: must be an optimiser of optax's: "
                f"{', '.join(sorted(names))}; or your own function (rate) -> "
                f"GradientTransformation.{nearest(optimizer, names)}"
            )
        kind = "an optax.GradientTransformation"
        given = resolved("learning.optimizer", optimizer, is_transformation, kind)
    result = given if is_transformation(given) else _called(given, rate)
    if not is_transformation(result):
        raise ConfigError(
            f"learning.optimizer = {shown(optimizer)}: must be, or give for a learning rate, an "
            f"optax.GradientTransformation, not {type(result).__name__}."
        )
    return result


def is_transformation(given: Any) -> bool:
    """Whether it is a transformation of optax's, made already."""
    import optax

    return issubclass(type(given), optax.GradientTransformation)


def _as_one_vector(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same for a model whose weights stand in one vector, if it is small."""
    import optax

    flat = optax.flatten(inner)

    def fitting(weights: Any) -> optax.GradientTransformation:
        leaves = jax.tree.leaves(weights)
        small = len(leaves) > 1 and sum(leaf.size for leaf in leaves) <= ONE_VECTOR
        return flat if small and len({leaf.dtype for leaf in leaves}) == 1 else inner

    def init(params: Any) -> optax.OptState:
        return fitting(params).init(params)

    def update(grads: Any, state: optax.OptState, params: Any = None) -> Any:
        return fitting(grads).update(grads, state, params)

    return optax.GradientTransformation(init, update)


def _called(function: Any, rate: Array | float) -> Any:
    if not callable(function):
        return function
    try:
        return function(rate)
    except Exception as error:
        raise ConfigError(
            f"learning.optimizer = {function!r}: cannot be called with the learning rate alone "
            f"({type(error).__name__}: {error})."
        ) from error


class ServerOptimizer(Config):
    """What the server does with the mean of the released updates (Reddi et al., 2021).

    Its negative is taken for the gradient of the global model's ``params``; other collections are
    averaged. Rounds in which nobody took part change nothing.
    """

    def transformation(self) -> optax.GradientTransformation | None:
        """The optax transformation; None adds the mean as it is."""
        raise NotImplementedError


class FedAvg(ServerOptimizer):
    """Add the mean update: PAUSE (2)."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "add the mean update"

    def transformation(self) -> None:
        return None


class FedAvgM(ServerOptimizer):
    """Momentum over the rounds: ``optax.sgd``.

    Attributes:
      rate: the server's learning rate.
      momentum: share of the last move that is kept.
    """

    name: ClassVar[str] = "fedavgm"
    summary: ClassVar[str] = "momentum at the server"

    rate: float = number(default=1.0, above=0)
    momentum: float = number(default=0.9, at_least=0, at_most=1)

    def transformation(self) -> optax.GradientTransformation:
        import optax

        return optax.sgd(self.rate, momentum=self.momentum)


class FedAdam(ServerOptimizer):
    """``optax.adam`` over the rounds: with its bias correction, which Reddi et al. leave out.

    Attributes:
      rate: the server's learning rate.
      b1, b2: decay of the two moments.
      tau: added to the root of the second one; how adaptive it is.
    """

    name: ClassVar[str] = "fedadam"
    summary: ClassVar[str] = "Adam at the server"

    rate: float = number(default=0.01, above=0)
    b1: float = number(default=0.9, at_least=0, at_most=1)
    b2: float = number(default=0.99, at_least=0, at_most=1)
    tau: float = number(default=1e-3, above=0)

    def transformation(self) -> optax.GradientTransformation:
        import optax

        return optax.adam(self.rate, b1=self.b1, b2=self.b2, eps=self.tau)


class FedYogi(FedAdam):
    """Yogi by optax over the rounds, both moments from 0; attributes as in :class:`FedAdam`."""

    name: ClassVar[str] = "fedyogi"
    summary: ClassVar[str] = "Yogi at the server"

    def transformation(self) -> optax.GradientTransformation:
        import optax

        # optax's alias starts the mean at 1e-6, which moves a model that nobody has trained.
        by_yogi = optax.scale_by_yogi(self.b1, self.b2, self.tau, initial_accumulator_value=0.0)
        return optax.chain(by_yogi, optax.scale_by_learning_rate(self.rate))


SERVER_OPTIMIZERS: tuple[type[ServerOptimizer], ...] = (FedAvg, FedAvgM, FedAdam, FedYogi)


def moved(params: Any, moves: Any) -> Any:
    """Parameters after the moves of an optimiser."""
    import optax

    return optax.apply_updates(params, moves)


def server_step(
    transformation: optax.GradientTransformation,
    params: Any,
    state: optax.OptState,
    mean: Any,
    received: Array,
) -> tuple[Any, optax.OptState]:
    """One step of the server on the mean update, of the form of ``params``: (params, state).

    Nothing changes unless ``received``, bool scalar: whether any update arrived.
    """
    gradient = jax.tree.map(jnp.negative, mean)
    moves, after = transformation.update(gradient, state, params)
    stepped = moved(params, moves), after
    return jax.tree.map(lambda new, old: jnp.where(received, new, old), stepped, (params, state))
