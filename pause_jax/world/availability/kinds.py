"""Presence without a file: hours of the day, and a chain that comes and goes."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import number
from pause_jax.rng.evenly import evenly
from pause_jax.world.availability.base import Presence


class Diurnal(Presence):
    """Each client is there in one stretch of every period, such as the night where it is.

    Client k's begins ``spread`` times the fractional part of k times the golden ratio after the
    period's start, in periods: evenly over the clients, whatever their number and speed.

    Attributes:
      period: seconds.
      share: of the period in which a client is there.
      spread: share of the period over which the clients' beginnings lie: 1 for a fleet around the
        world, 0 for one in which all come and go together.
    """

    name: ClassVar[str] = "diurnal"
    summary: ClassVar[str] = "a stretch of every period, such as a day"

    period: float = number(default=86_400.0, above=0)
    share: float = number(default=1 / 3, above=0, at_most=1)
    spread: float = number(default=1.0, at_least=0, at_most=1)

    def step(self, state: Any, key: Array, clock: Array, num_clients: int) -> tuple[Array, Any]:
        begins = self.spread * jnp.asarray(evenly(num_clients), jnp.float32)
        return (clock % self.period / self.period - begins) % 1 < self.share, state


class OnOff(Presence):
    """Each client comes and goes by a Markov chain of its own, a step a round.

    It begins as it goes on: there with probability ``come`` / (``come`` + ``leave``).

    Attributes:
      leave: probability that a client that was there in the last round is not in the next.
      come: probability that one that was away is there.
    """

    name: ClassVar[str] = "on_off"
    summary: ClassVar[str] = "comes and goes by a Markov chain, a step a round"

    leave: float = number(default=0.1, above=0, at_most=1)
    come: float = number(default=0.1, above=0, at_most=1)

    def begin(self, key: Array, num_clients: int) -> Array:
        return jax.random.bernoulli(key, self.come / (self.come + self.leave), (num_clients,))

    def step(self, state: Array, key: Array, clock: Array, num_clients: int) -> tuple[Array, Array]:
        changes = jax.random.uniform(key, (num_clients,))
        here = jnp.where(state, changes >= self.leave, changes < self.come)
        return here, here
