"""Base class for availability traces, and built-in traces that need no file."""

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
    """Base class for traces that determine which clients are connected in each round.

    A trace depends only on simulated time and random draws, and not directly on the policy.

    Attributes:
      recheck: seconds that the server waits if no client is chosen in a round.
    """

    recheck: float = number(default=60.0, above=0)

    def init(self, key: Array, num_clients: int) -> Any:
        """Return the state before round 1 (by default, an empty tuple)."""
        return ()

    def step(self, state: Any, key: Array, clock: Array, num_clients: int) -> tuple[Array, Any]:
        """Return (mask of clients connected in the next round, bool [K]; state after that round).

        Args:
          state: state after the previous round.
          key: random key for the next round.
          clock: simulated seconds at the round's start, a scalar.
          num_clients: K.
        """
        raise NotImplementedError

    def forecast(self, clock: Array, ahead: Array, num_clients: int) -> Array:
        """Return P(connected at ``clock + ahead`` | connected at ``clock``) per client, float [K].

        Traces that depend on more than the clock must override this method.

        Args:
          clock: current simulated time in seconds, a scalar.
          ahead: forecast horizon in seconds.
          num_clients: K.
        """
        connected, _ = self.step((), jax.random.key(0), clock + ahead, num_clients)
        return connected.astype(jnp.float32)


class Diurnal(AvailabilityTrace):
    """Periodic trace that connects each client once per period, for example at night.

    Client k connects ``spread`` * frac(k * golden ratio) periods after the start of each period.
    For any number of clients, connection times are evenly spread and unrelated to latency.

    Attributes:
      period: period length in seconds.
      share: fraction of the period for which a client is connected.
      spread: length of the interval that contains all connection times, as a fraction of the
        period. Use 1 for a worldwide fleet, and 0 if all clients connect at the same time.
    """

    name: ClassVar[str] = "diurnal"
    summary: ClassVar[str] = "one connection per period, for example per day"

    period: float = number(default=86_400.0, above=0)
    share: float = number(default=1 / 3, above=0, at_most=1)
    spread: float = number(default=1.0, at_least=0, at_most=1)

    def step(self, state: Any, key: Array, clock: Array, num_clients: int) -> tuple[Array, Any]:
        begins = self.spread * jnp.asarray(evenly(num_clients), jnp.float32)
        return (clock % self.period / self.period - begins) % 1 < self.share, state


class OnOff(AvailabilityTrace):
    """Independent Markov chain for each client, with one step per round.

    Initially, each client is connected with the equilibrium probability come / (come + leave).

    Attributes:
      leave: probability that a connected client disconnects by the next round.
      come: probability that a disconnected client connects by the next round.
    """

    name: ClassVar[str] = "on_off"
    summary: ClassVar[str] = "independent Markov chain for each client, one step per round"

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
    """Independent continuous-time Markov chain for each phone, fitted to FLASH measurements.

    The fraction of time for which phone k is connected is the frac(k * sqrt(2)) quantile of an
    exponential distribution with mean ``share``. This fraction is multiplied by a daily factor that
    varies from 1 - ``swing`` to 1 + ``swing`` (at ``peak``). The product is capped at 0.999.
    Runs start at midnight.

    The defaults are fitted to ``data/cached_timers.json`` of github.com/Carkham/FLHetBench. The
    file lists 1,000 users from FLASH (Yang et al., WWW 2021), 710 of whom were observed for one to
    seven days. A phone is considered connected while idle, charging and on Wi-Fi. The 0.25, 0.5,
    0.75, 0.9 and 0.95 quantiles of the fraction are 0.013, 0.055, 0.131, 0.255 and 0.324 in the
    data (0.027, 0.066, 0.132, 0.219 and 0.285 in this model).

    Attributes:
      share: mean fraction of time for which a phone is connected.
      stretch: mean duration of a connection, in seconds.
      swing: relative amplitude of the daily variation in the fraction of connected phones.
      peak: time of day at which the most phones are connected, in seconds after midnight.
    """

    name: ClassVar[str] = "phones"
    summary: ClassVar[str] = "phones, connected while idle, charging and on Wi-Fi (FLASH)"

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
        """Return P(connected at ``clock`` | state ``before`` at ``clock - since``), float [K]."""
        share = self._share(clock, num_clients)
        # The relaxation rate is the disconnection rate (1 / stretch) plus the connection rate.
        remembered = jnp.exp(-since / (self.stretch * (1 - share)))
        return share + (before.astype(share.dtype) - share) * remembered

    def _share(self, clock: Array, num_clients: int) -> Array:
        """Return each phone's equilibrium probability of being connected, float [K]."""
        place = np.arange(num_clients) * math.sqrt(2) % 1
        swing = 1 + self.swing * jnp.cos(2 * jnp.pi * (clock - self.peak) / _DAY)
        return jnp.minimum(-jnp.log1p(-jnp.asarray(place, jnp.float32)) * self.share * swing, 0.999)
