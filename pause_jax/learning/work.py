"""Clients' local work: the number of steps per round, and per-client factors that scale it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from pause_jax.base.struct import Config, ConfigError, Sizes, number, static

if TYPE_CHECKING:
    import optax
    from numpy.typing import NDArray

# Relative float32 rounding error that is ignored when a product is rounded up to whole steps.
_ROUNDING = 1e-6
_LEVELS = 8


class Steps(NamedTuple):
    """Local step counts of one client, or of n clients if the fields have shape [n]."""

    per_pass: Int[Array, "*n"] | int  # steps in one pass over the client's data
    total: Int[Array, "*n"] | int  # steps in a round


class LocalWork(NamedTuple):
    """Settings that determine each client's local steps in a round (see ``Learning``)."""

    batch_size: int
    max_steps: int
    epochs: Array | float
    local_steps: int | None

    def steps(self, size: Array | int, factors: Array | None = None) -> Steps:
        """Return the step counts of clients with ``size`` samples and work ``factors`` (default 1).

        A pass or round has at most ``max_steps`` steps. An int ``size`` makes ``per_pass`` static.
        """
        per_pass = -(-size // self.batch_size)
        if isinstance(size, int):
            per_pass = min(per_pass, self.max_steps)
        else:
            per_pass = jnp.minimum(per_pass, self.max_steps).astype(jnp.int32)
        wanted = jnp.asarray(per_pass, jnp.float32) * self.epochs
        if self.local_steps is not None:
            wanted = jnp.full(jnp.shape(per_pass), self.local_steps, jnp.float32)
        if factors is not None:
            wanted = wanted * factors
        total = jnp.ceil(wanted * (1 - _ROUNDING)).astype(jnp.int32)
        return Steps(per_pass, jnp.clip(total, 1, self.max_steps))

    def samples(self, size: Array | int, steps: Steps) -> Array:
        """Return the number of samples used per client and round. A sample counts once per pass."""
        used = jnp.minimum(size, self.max_steps * self.batch_size)
        passes = jnp.asarray(steps.total // steps.per_pass)
        rest = (steps.total - passes * steps.per_pass) * self.batch_size
        return passes.astype(used.dtype) * used + jnp.minimum(rest.astype(used.dtype), used)


class WorkLaw(Config):
    """Base class for per-client factors that multiply the number of epochs or local steps."""

    # Whether all factors are 1. If True, no factors are drawn.
    equal: ClassVar[bool] = False

    def factors(self, key: Array, num_clients: int) -> Array:
        """Draw each client's factor for one round, float [K] > 0.

        ``key`` is from the ``world`` stream, so the factors are the same for all policies.
        """
        raise NotImplementedError

    def levels(self, num_clients: int) -> Array:
        """Return n equally likely factors per client, float [n, K], for computing expectations."""
        raise NotImplementedError

    @property
    def most(self) -> float:
        """Largest possible factor."""
        raise NotImplementedError


class EqualWork(WorkLaw):
    """The same number of epochs or local steps for every client."""

    name: ClassVar[str] = "equal"
    summary: ClassVar[str] = "the same number of epochs or steps for every client"
    equal: ClassVar[bool] = True

    @property
    def most(self) -> float:
        return 1.0


class PerClient(WorkLaw):
    """Fixed factors, one per client. With ``epochs = 1``, client k trains for ``values[k]`` epochs.

    Attributes:
      values: one work factor > 0 per client (static).
    """

    name: ClassVar[str] = "per_client"
    summary: ClassVar[str] = "explicit list of factors, one per client"

    values: tuple[float, ...] = static(default=(1.0,), above=0)

    def check(self, path: str, sizes: Sizes) -> None:
        if len(self.values) != sizes.num_clients:
            raise ConfigError(
                f"{path}.values: has {len(self.values)} factors for {sizes.num_clients} clients. "
                "Set one factor per client."
            )

    def factors(self, key: Array, num_clients: int) -> Array:
        return jnp.asarray(self.values, jnp.float32)

    def levels(self, num_clients: int) -> Array:
        return jnp.asarray(self.values, jnp.float32)[None]

    @property
    def most(self) -> float:
        return max(self.values)


class UniformWork(WorkLaw):
    """Uniform random factor per client and round, similar to FedProx's model of stragglers.

    Expected speeds and latencies are averages over eight equally likely factors per client.

    Attributes:
      low: smallest factor.
      high: largest factor.
    """

    name: ClassVar[str] = "uniform"
    summary: ClassVar[str] = "uniform random factor per client and round (FedProx)"

    low: float = number(default=0.1, above=0)
    high: float = number(default=1.0, above=0)

    def check(self, path: str, sizes: Sizes) -> None:
        known = not any(isinstance(x, jax.core.Tracer) for x in (self.low, self.high))
        if known and self.low > self.high:
            raise ConfigError(
                f"{path}.low = {self.low}: must be <= {path}.high = {self.high}. Swap them."
            )

    def factors(self, key: Array, num_clients: int) -> Array:
        return jax.random.uniform(key, (num_clients,), minval=self.low, maxval=self.high)

    def levels(self, num_clients: int) -> Array:
        middle = (jnp.arange(_LEVELS) + 0.5) / _LEVELS
        each = self.low + (self.high - self.low) * middle
        return jnp.broadcast_to(each[:, None], (_LEVELS, num_clients))

    @property
    def most(self) -> float:
        return float(np.max(self.high))


def gradient_weights(
    optimizer: optax.GradientTransformation, proximal: Array | float | None, max_steps: int
) -> Array:
    """Return FedNova's |a|_1 after 0, 1, ..., ``max_steps`` steps (Wang et al., 2020).

    A linear optimiser's update is a weighted sum of gradients. ``|a|_1`` is the sum of these
    weights divided by the sum after one step. If every loss gradient is 1, the update equals the
    sum of the weights.
    """
    import optax

    def step(carry: tuple[Array, optax.OptState], _: None) -> tuple[Any, Array]:
        moved, state = carry
        gradient = 1.0 if proximal is None else 1.0 + proximal * moved
        move, state = optimizer.update(jnp.asarray(gradient, jnp.float32), state, moved)
        moved = optax.apply_updates(moved, move)
        return (moved, state), moved

    start = jnp.zeros(())
    _, moved = jax.lax.scan(step, (start, optimizer.init(start)), length=max_steps)
    return jnp.concatenate([start[None], moved / moved[0]])


def is_linear(optimizer: optax.GradientTransformation) -> bool:
    """Return whether the optimiser's update is a weighted sum of gradients, as FedNova requires."""
    import optax

    def update(gradients: NDArray[np.float32], start: float) -> Array:
        weights = jnp.full(gradients.shape[1], start)
        state = optimizer.init(weights)
        for gradient in gradients:
            move, state = optimizer.update(jnp.asarray(gradient), state, weights)
            weights = optax.apply_updates(weights, move)
        return weights - start

    one, other = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    apart = update(one, 0.0) + update(other, 0.5)
    return bool(jnp.allclose(apart, update(one + other, 1.0), rtol=1e-3, atol=1e-5))
