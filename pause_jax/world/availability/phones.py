"""When phones are there: idle, charging and on Wi-Fi, as FLASH measured it."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.struct import number
from pause_jax.world.availability.base import AvailabilityTrace

_DAY = 86_400.0


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
        here = jax.random.bernoulli(key, self._share(jnp.zeros(()), num_clients))
        return here, jnp.zeros(())

    def step(
        self, state: tuple[Array, Array], key: Array, clock: Array, num_clients: int
    ) -> tuple[Array, Any]:
        before, then = state
        here = jax.random.bernoulli(key, self._chance(before, clock, clock - then, num_clients))
        return here, (here, clock)

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
