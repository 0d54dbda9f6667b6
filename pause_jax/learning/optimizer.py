"""Optimisers of the clients and of the server, from optax or custom, and rate schedules."""

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
from pause_jax.base.struct import Config, ConfigError, number, static

if TYPE_CHECKING:
    import optax
    from jaxtyping import Float, Int

# They take more than a rate: a line search, a seed of their own.
_EXCLUDED = ("lbfgs", "noisy_sgd")


@functools.cache
def optimizers() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Return the optimisers of optax that need only a learning rate, by name."""
    import optax

    by_name: dict[str, Callable[..., optax.GradientTransformation]] = {}
    for name, value in vars(optax).items():
        if not inspect.isfunction(value) or name.startswith("scale_by") or name in _EXCLUDED:
            continue
        arguments = list(inspect.signature(value).parameters.values())
        needed = {a.name for a in arguments if a.default is a.empty and a.kind is not a.VAR_KEYWORD}
        if arguments and arguments[0].name == "learning_rate" and needed <= {"learning_rate"}:
            by_name[name] = value
    return by_name


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
    """
    value = optimizer
    if isinstance(optimizer, str):
        names = optimizers()
        if optimizer in names:
            named = names[optimizer](rate)
            return _as_one_vector(named) if optimizer in ELEMENTWISE else named
        if ":" not in optimizer:
            raise ConfigError(
                f"learning.optimizer = {shown(optimizer)}: must be an optimiser of optax's: "
                f"{', '.join(sorted(names))}; or your own function (rate) -> "
                f"GradientTransformation.{nearest(optimizer, names)}"
            )
        kind = "an optax.GradientTransformation"
        value = resolved("learning.optimizer", optimizer, is_transformation, kind)
    if callable(value) and not is_transformation(value):
        try:
            value = value(rate)
        except Exception as error:
            raise ConfigError(
                f"learning.optimizer = {optimizer!r}: cannot be called with the learning rate "
                f"alone ({type(error).__name__}: {error})."
            ) from error
    if not is_transformation(value):
        raise ConfigError(
            f"learning.optimizer = {shown(optimizer)}: must be, or give for a learning rate, an "
            f"optax.GradientTransformation, not {type(value).__name__}."
        )
    return value


def is_transformation(value: Any) -> bool:
    """Return whether a value is a transformation of optax."""
    import optax

    return issubclass(type(value), optax.GradientTransformation)


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
    import optax

    gradient = jax.tree.map(jnp.negative, mean)
    moves, after = transformation.update(gradient, state, params)
    stepped = optax.apply_updates(params, moves), after
    return jax.tree.map(lambda new, old: jnp.where(received, new, old), stepped, (params, state))


class RateSchedule(Config):
    """Learning-rate schedule: by which share of the base rate the clients of a round train.

    It goes by the round of the federated run: all clients of a round share its rate, and a round in
    which nobody trains counts. It is a function of the round alone, so its numbers can be swept.
    """

    def rate(self, base: Array | float, round: Int[Array, ""]) -> Float[Array, ""] | float:
        """The learning rate of round t >= 1, a scalar in [0, base]; ``base`` is that of round 1."""
        raise NotImplementedError


class ConstantRate(RateSchedule):
    """The base rate in every round (the PAUSE runs)."""

    name: ClassVar[str] = "constant"
    summary: ClassVar[str] = "the same rate in every round (PAUSE)"

    def rate(self, base: Array | float, round: Int[Array, ""]) -> Float[Array, ""] | float:
        return base


class StepDecay(RateSchedule):
    """The base rate times ``factor`` to the floor((t - 1) / every): PyTorch's StepLR, by rounds.

    BSFL says that it uses StepLR in all its simulations (section VI), not with which numbers.

    Attributes:
      every: rounds from one step to the next; the first ``every`` rounds have the base rate.
      factor: by which the rate falls at each step.
    """

    name: ClassVar[str] = "step"
    summary: ClassVar[str] = "decays by a factor every N rounds (StepLR, as BSFL says)"

    every: int = static(default=100, at_least=1)
    factor: float = number(default=0.5, above=0, at_most=1)

    def rate(self, base: Array | float, round: Int[Array, ""]) -> Float[Array, ""]:
        # Whole numbers: a quotient of floats may round up to the next step.
        steps = (round - 1) // self.every
        return base * jnp.asarray(self.factor, jnp.float32) ** steps.astype(jnp.float32)


class CosineDecay(RateSchedule):
    """Half a cosine from the base rate to a share of it (Loshchilov and Hutter, 2017, (5)).

    The rate of round t is base (f + (1 - f) (1 + cos(pi min((t - 1) / horizon, 1))) / 2), with f
    the final share: PyTorch's CosineAnnealingLR by rounds, which stays low after the horizon.

    Attributes:
      horizon: rounds until the final share is reached; as a rule ``num_rounds``.
      final: f, in [0, 1]. At 0 nothing is learned after the horizon.
    """

    name: ClassVar[str] = "cosine"
    summary: ClassVar[str] = "half a cosine over N rounds, then constant"

    horizon: float = number(default=300.0, above=0)
    final: float = number(default=0.0, at_least=0, at_most=1)

    def rate(self, base: Array | float, round: Int[Array, ""]) -> Float[Array, ""]:
        passed = jnp.minimum((round - 1).astype(jnp.float32) / self.horizon, 1.0)
        return base * (self.final + (1 - self.final) * (1 + jnp.cos(jnp.pi * passed)) / 2)
