"""Learning-rate schedules: by which share of the base rate the clients of a round train.

A schedule goes by the round of the federated run, which the server knows and says: all clients of
a round share its rate, and a round in which nobody trains counts. It is a function of the round
alone, so its numbers can be swept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import Config, number, static

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class RateSchedule(Config):
    """A schedule's config."""

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
    summary: ClassVar[str] = "falls by a factor every so many rounds (StepLR, as BSFL says)"

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
    summary: ClassVar[str] = "half a cosine over so many rounds, then constant"

    horizon: float = number(default=300.0, above=0)
    final: float = number(default=0.0, at_least=0, at_most=1)

    def rate(self, base: Array | float, round: Int[Array, ""]) -> Float[Array, ""]:
        passed = jnp.minimum((round - 1).astype(jnp.float32) / self.horizon, 1.0)
        return base * (self.final + (1 - self.final) * (1 + jnp.cos(jnp.pi * passed)) / 2)


SCHEDULES = (ConstantRate, StepDecay, CosineDecay)
