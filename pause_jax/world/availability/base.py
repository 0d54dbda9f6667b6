"""Availability traces: the contract, and the traces that read no file."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.source_file import FromFile
from pause_jax.base.struct import number
from pause_jax.rng.draws import evenly

_DAY = 86_400.0


class AvailabilityTrace(FromFile):
    """An availability trace: which clients are connected in a round.

    It depends on the clock, on chance, and on a policy only by how long rounds last.

    Attributes:
      recheck: seconds that a round without a chosen client lasts, until the server looks again.
    """

    recheck: float = number(default=60.0, above=0)

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
        connected, _ = self.step((), jax.random.key(0), clock + ahead, num_clients)
        return connected.astype(jnp.float32)


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
        connected = jnp.where(state, changes >= self.leave, changes < self.come)
        return connected, connected

    def forecast(self, clock: Array, ahead: Array, num_clients: int) -> Array:
        return jnp.full(num_clients, 1.0 - self.leave)


class Phones(AvailabilityTrace):
    """Each phone comes and goes by a Markov chain in time, some often and most seldom.

    Phone k is there in a share of the time that is drawn from an exponential distribution of mean
    ``share``: its quantile at the fractional part of k times the square root of 2. The share swings
    with the hour, by ``swing`` up and down, and is highest at ``peak``. A stretch lasts ``stretch``
    seconds on average, however long rounds are.

    The defaults are fitted to ``data/cached_timers.json`` of github.com/Carkham/FLHetBench: 1,000
    users of FLASH (Yang et al., WWW 2021), of 710 of whom it has the state, over a day to a week.
    A phone is there while it is idle, charging and on Wi-Fi. On average it is so in 0.095 of the
    time; the quantiles 0.25, 0.5, 0.75, 0.9 and 0.95 are 0.013, 0.055, 0.131, 0.255 and 0.324
    (here 0.027, 0.066, 0.132, 0.219 and 0.285). Stretches last 1,931 s on average. The share of all
    is 0.137 at four in the morning and 0.065 in the early afternoon.

    Attributes:
      share: of the time in which a phone is there, on average over phones.
      stretch: seconds for which it is then there, on average.
      swing: by which part of itself the share rises and falls within a day.
      peak: seconds after midnight, where the clock starts, at which it is highest.
    """

    name: ClassVar[str] = "phones"
    summary: ClassVar[str] = "phones that are idle, charging and on Wi-Fi, fitted to FLASH"

    share: float = number(default=0.095, above=0, at_most=1)
    stretch: float = number(default=1931.0, above=0)
    swing: float = number(default=0.36, at_least=0, at_most=1)
    peak: float = number(default=14_400.0, at_least=0)

    def init(self, key: Array, num_clients: int) -> tuple[Array, Array]:
        connected = jax.random.bernoulli(key, self._share(jnp.zeros(()), num_clients))
        return connected, jnp.zeros(())

    def step(
        self, state: tuple[Array, Array], key: Array, clock: Array, num_clients: int
    ) -> tuple[Array, Any]:
        before, last_clock = state
        chance = self._chance(before, clock, clock - last_clock, num_clients)
        connected = jax.random.bernoulli(key, chance)
        return connected, (connected, clock)

    def forecast(self, clock: Array, ahead: Array, num_clients: int) -> Array:
        return self._chance(jnp.ones(num_clients), clock + ahead, ahead, num_clients)

    def _chance(self, before: Array, clock: Array, since: Array, num_clients: int) -> Array:
        """Probability of being there, float [K], ``since`` seconds after it was so or not."""
        share = self._share(clock, num_clients)
        # The chain leaves at the rate 1 / stretch, and forgets at that of leaving and coming.
        return share + (before.astype(share.dtype) - share) * jnp.exp(
            -since / (self.stretch * (1 - share))
        )

    def _share(self, clock: Array, num_clients: int) -> Array:
        """Of the time around ``clock``, float [K]."""
        place = np.arange(num_clients) * math.sqrt(2) % 1
        swing = 1 + self.swing * jnp.cos(2 * jnp.pi * (clock - self.peak) / _DAY)
        return jnp.minimum(-jnp.log1p(-jnp.asarray(place, jnp.float32)) * self.share * swing, 0.999)
