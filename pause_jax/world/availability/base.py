"""Availability traces: the contract, and those without a file."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import Config, number
from pause_jax.rng.draws import evenly


class AvailabilityTrace(Config):
    """An availability trace: which clients are connected in a round.

    It depends on the clock, on chance, and on a policy only by how long rounds last.

    Attributes:
      recheck: seconds that a round without a chosen client lasts, until the server looks again.
    """

    recheck: float = number(default=60.0, above=0)

    def loaded(self) -> Self:
        """The trace with what it reads from files; done on the host before a run is traced."""
        return self

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Ids of clients 0, 1, ... in the file that it reads; empty if it knows no ids."""
        return ()

    def init(self, key: Array, num_clients: int) -> Any:
        """The state before round 1; nothing by default."""
        return ()

    def step(self, state: Any, key: Array, clock: Array, num_clients: int) -> tuple[Array, Any]:
        """Clients that are connected in the next round, bool [K], and the state after it.

        Args:
          state: that after the round before.
          key: of the round.
          clock: simulated seconds at the round's start, a scalar.
          num_clients: K.
        """
        raise NotImplementedError

    def forecast(self, clock: Array, ahead: Array, num_clients: int) -> Array:
        """Probability that a client that is connected now will be so later, float [K].

        By default that of a trace which depends on the clock alone: override it for others.

        Args:
          clock: now, in simulated seconds, a scalar.
          ahead: seconds from now.
          num_clients: K.
        """
        here, _ = self.step((), jax.random.key(0), clock + ahead, num_clients)
        return here.astype(jnp.float32)


class Diurnal(AvailabilityTrace):
    """Each client is connected in one stretch of every period, such as its local night.

    Client k's stretch starts ``spread`` times the fractional part of k times the golden ratio after
    the period's start, in periods: evenly over the clients, whatever their number and speed.

    Attributes:
      period: seconds.
      share: of the period in which a client is connected.
      spread: share of the period over which the clients' starts lie: 1 for a fleet around the
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


class OnOff(AvailabilityTrace):
    """Each client comes and goes by a Markov chain of its own, a step a round.

    It starts in equilibrium: connected with probability ``come`` / (``come`` + ``leave``).

    Attributes:
      leave: probability that a client connected in the last round is not in the next.
      come: probability that one that was not connected is in the next.
    """

    name: ClassVar[str] = "on_off"
    summary: ClassVar[str] = "comes and goes by a Markov chain, a step a round"

    leave: float = number(default=0.1, above=0, at_most=1)
    come: float = number(default=0.1, above=0, at_most=1)

    def init(self, key: Array, num_clients: int) -> Array:
        return jax.random.bernoulli(key, self.come / (self.come + self.leave), (num_clients,))

    def step(self, state: Array, key: Array, clock: Array, num_clients: int) -> tuple[Array, Array]:
        changes = jax.random.uniform(key, (num_clients,))
        here = jnp.where(state, changes >= self.leave, changes < self.come)
        return here, here

    def forecast(self, clock: Array, ahead: Array, num_clients: int) -> Array:
        return jnp.full(num_clients, 1.0 - self.leave)
