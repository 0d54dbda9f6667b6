"""Client optimisers, server optimisers and learning-rate schedules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pause_jax.base.registry import resolved
from pause_jax.base.spelling import nearest, shown
from pause_jax.base.struct import Config, ConfigError, number, static

if TYPE_CHECKING:
    import optax

# Excluded optax optimisers. ``lbfgs`` needs a line search, and ``noisy_sgd`` needs a seed.
_EXCLUDED = ("lbfgs", "noisy_sgd")


@functools.cache
def optimizers() -> dict[str, Callable[..., optax.GradientTransformation]]:
    """Return the optax optimisers that require only a learning rate, keyed by name."""
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


# Optimisers that update each weight independently of all other weights.
ELEMENTWISE = frozenset(
    (
        *("adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan"),
        *("amsgrad", "lion", "optimistic_adam", "optimistic_adam_v2"),
        *("optimistic_gradient_descent", "radam", "rmsprop", "rprop", "sgd", "sign_sgd"),
        *("signum", "yogi"),
    )
)
# Models with at most ONE_VECTOR weights are updated as one vector, to reduce compile time.
ONE_VECTOR = 2**13


def made(optimizer: Any, rate: Array | float) -> optax.GradientTransformation:
    """Build the optax transformation for ``optimizer`` with a (possibly traced) learning rate.

    ``optimizer`` is an optax name (``adam``, ``sgd``, ...), a function of the rate, a
    transformation with a fixed rate, or "module:name" for a transformation in an imported module.
    """
    value = optimizer
    if isinstance(optimizer, str):
        names = optimizers()
        if optimizer in names:
            named = names[optimizer](rate)
            return _as_one_vector(named) if optimizer in ELEMENTWISE else named
        if ":" not in optimizer:
            raise ConfigError(
                f"learning.optimizer = {shown(optimizer)}: must be an optax optimiser "
                f"({', '.join(sorted(names))}) or a function (rate) -> "
                f"GradientTransformation.{nearest(optimizer, names)}"
            )
        kind = "an optax.GradientTransformation"
        value = resolved("learning.optimizer", optimizer, is_transformation, kind)
    if callable(value) and not is_transformation(value):
        try:
            value = value(rate)
        except Exception as error:
            raise ConfigError(
                f"learning.optimizer = {optimizer!r}: must be callable with only the learning "
                f"rate ({type(error).__name__}: {error})."
            ) from error
    if not is_transformation(value):
        raise ConfigError(
            f"learning.optimizer = {shown(optimizer)}: must be an optax.GradientTransformation, "
            f"or a function of the learning rate that returns one, not {type(value).__name__}."
        )
    return value


def is_transformation(value: Any) -> bool:
    """Return whether a value is an optax transformation."""
    import optax

    return issubclass(type(value), optax.GradientTransformation)


def _as_one_vector(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Wrap ``inner`` to update the weights of a small model as one vector."""
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
    """Base class for server optimisers, which apply the mean update (Reddi et al., 2021).

    The negative mean update serves as the gradient of the model's ``params``. The mean
    updates of other collections are added directly. A round without updates changes nothing.
    """

    def transformation(self) -> optax.GradientTransformation | None:
        """Return the optax transformation, or None to add the mean update unchanged."""
        raise NotImplementedError


class FedAvg(ServerOptimizer):
    """Federated averaging (Eq. (2) of PAUSE), which adds the mean update to the global model."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "add the mean update"

    def transformation(self) -> None:
        return None


class FedAvgM(ServerOptimizer):
    """SGD with momentum on the server, implemented with ``optax.sgd``.

    Attributes:
      rate: server learning rate.
      momentum: decay rate of the momentum per server step.
    """

    name: ClassVar[str] = "fedavgm"
    summary: ClassVar[str] = "SGD with momentum on the server"

    rate: float = number(default=1.0, above=0)
    momentum: float = number(default=0.9, at_least=0, at_most=1)

    def transformation(self) -> optax.GradientTransformation:
        import optax

        return optax.sgd(self.rate, momentum=self.momentum)


class FedAdam(ServerOptimizer):
    """Adam on the server (``optax.adam``). Unlike in Reddi et al., the moments are bias-corrected.

    Attributes:
      rate: server learning rate.
      b1, b2: decay rates of the first and second moments.
      tau: constant added to the square root of the second moment. Larger values reduce adaptivity.
    """

    name: ClassVar[str] = "fedadam"
    summary: ClassVar[str] = "Adam on the server"

    rate: float = number(default=0.01, above=0)
    b1: float = number(default=0.9, at_least=0, at_most=1)
    b2: float = number(default=0.99, at_least=0, at_most=1)
    tau: float = number(default=1e-3, above=0)

    def transformation(self) -> optax.GradientTransformation:
        import optax

        return optax.adam(self.rate, b1=self.b1, b2=self.b2, eps=self.tau)


class FedYogi(FedAdam):
    """Yogi on the server, with both moments initially 0. Attributes are as in :class:`FedAdam`."""

    name: ClassVar[str] = "fedyogi"
    summary: ClassVar[str] = "Yogi on the server"

    def transformation(self) -> optax.GradientTransformation:
        import optax

        # ``optax.yogi`` initialises moments to 1e-6, so all-zero updates would change the model.
        by_yogi = optax.scale_by_yogi(self.b1, self.b2, self.tau, initial_accumulator_value=0.0)
        return optax.chain(by_yogi, optax.scale_by_learning_rate(self.rate))


def server_step(
    transformation: optax.GradientTransformation,
    params: Any,
    state: optax.OptState,
    mean: Any,
    received: Array,
) -> tuple[Any, optax.OptState]:
    """Apply a server optimiser to ``mean``, the mean update, and return (params, state).

    If no update arrived (the bool scalar ``received`` is False), both are returned unchanged.
    """
    import optax

    gradient = jax.tree.map(jnp.negative, mean)
    moves, after = transformation.update(gradient, state, params)
    stepped = optax.apply_updates(params, moves), after
    return jax.tree.map(lambda new, old: jnp.where(received, new, old), stepped, (params, state))


class RateSchedule(Config):
    """Base class for client learning-rate schedules over rounds.

    The schedule advances in every round, including rounds without training.
    """

    def rate(self, base: Array | float, round: Int[Array, ""]) -> Float[Array, ""] | float:
        """Return the learning rate for ``round`` >= 1, within [0, base] (``base`` in round 1)."""
        raise NotImplementedError


class ConstantRate(RateSchedule):
    """Constant learning rate, as in the PAUSE runs."""

    name: ClassVar[str] = "constant"
    summary: ClassVar[str] = "constant rate (PAUSE)"

    def rate(self, base: Array | float, round: Int[Array, ""]) -> Float[Array, ""] | float:
        return base


class StepDecay(RateSchedule):
    """Step decay over rounds, base * factor^floor((t - 1) / every), like PyTorch's StepLR.

    BSFL uses StepLR in all simulations (section VI) but does not state the parameters.

    Attributes:
      every: number of rounds between decays. The first ``every`` rounds use the base rate.
      factor: factor by which each decay multiplies the rate.
    """

    name: ClassVar[str] = "step"
    summary: ClassVar[str] = "decays by a factor every N rounds (StepLR, BSFL)"

    every: int = static(default=100, at_least=1)
    factor: float = number(default=0.5, above=0, at_most=1)

    def rate(self, base: Array | float, round: Int[Array, ""]) -> Float[Array, ""]:
        # Use integer division, because a float quotient may round up to the next integer.
        steps = (round - 1) // self.every
        return base * jnp.asarray(self.factor, jnp.float32) ** steps.astype(jnp.float32)


class CosineDecay(RateSchedule):
    """Cosine decay from the base rate to a fraction of it (Loshchilov and Hutter, 2017, Eq. 5).

    The rate of round t is base * (f + (1 - f) * (1 + cos(pi * min((t - 1) / horizon, 1))) / 2).

    Attributes:
      horizon: number of rounds until the rate reaches its final value, usually ``num_rounds``.
      final: f, ratio of the final rate to the base rate. If f is 0, learning stops at the horizon.
    """

    name: ClassVar[str] = "cosine"
    summary: ClassVar[str] = "cosine decay over N rounds, then constant"

    horizon: float = number(default=300.0, above=0)
    final: float = number(default=0.0, at_least=0, at_most=1)

    def rate(self, base: Array | float, round: Int[Array, ""]) -> Float[Array, ""]:
        passed = jnp.minimum((round - 1).astype(jnp.float32) / self.horizon, 1.0)
        return base * (self.final + (1 - self.final) * (1 + jnp.cos(jnp.pi * passed)) / 2)
