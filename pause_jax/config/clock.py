"""Clocks, which determine when clients start and when the server steps.

``docs/guides/event_clock.md`` describes :class:`Asynchronous` with a worked example.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pause_jax.base.struct import Config, ConfigError, Sizes, node, number, static


class StalenessWeight(Config):
    """Base class for staleness factors, which reduce the weight of updates from older models."""

    def factor(self, staleness: Array) -> Float[Array, ...]:
        """Return the factor in (0, 1] that scales an update's weight (1 if the staleness is 0).

        ``staleness`` is the number of server steps from download to averaging, as a float.
        """
        raise NotImplementedError


class Polynomial(StalenessWeight):
    """Factor (1 + staleness)^-a, as in FedBuff (a = 1/2; Nguyen et al. 2022) and FedAsync ("Poly").

    Attributes:
      exponent: a. For a = 0, the factor is 1 for every update.
    """

    name: ClassVar[str] = "polynomial"
    summary: ClassVar[str] = "(1 + staleness)^-a, with a = 1/2 in FedBuff"

    exponent: float = number(default=0.5, at_least=0)

    def factor(self, staleness: Array) -> Float[Array, ...]:
        # Powers may be rounded, but the factor must be exactly 1 at a staleness of 0.
        return jnp.where(staleness > 0, (1.0 + staleness) ** -self.exponent, 1.0)


class Clock(Config):
    """Base class for clocks, which determine when clients start and when the server steps."""

    def asked_for(self, num_selected: int) -> int:
        """Return the number of clients that the policy chooses at a time."""
        return num_selected

    def answers(self, cohort_size: int) -> int:
        """Return the maximum number of answers that a server step waits for."""
        return cohort_size

    def overlaps(self, cohort_size: int) -> bool:
        """Return whether clients may start while others are in flight."""
        return False


class Synchronous(Clock):
    """Synchronous rounds, in which all chosen clients start together after the previous round."""

    name: ClassVar[str] = "synchronous"
    summary: ClassVar[str] = "one round after another"


class Asynchronous(Clock):
    """Overlapping rounds, in which the server steps after every ``buffer``-th client answer.

    With this clock, ``SimConfig.num_rounds`` is the number of server steps. With O = 1, events
    occur in the same order as in FedAsync if B = 1, and as in FedBuff if 1 < B < C. If B = C = O
    and ``pace`` is None, the clock is equivalent to :class:`Synchronous`, and uses its program.

    Attributes:
      concurrency: C, maximum number of clients in flight (started, but not yet finished; static).
      buffer: B, number of answers that triggers a server step (static).
      open_slots: O, number of slots that must be free before clients start; None for
        ``num_selected`` (static). The policy then chooses O clients.
      staleness: factor that reduces the weight of stale updates.
      max_staleness: maximum staleness of an averaged update, in server steps; None for no limit.
        Older updates are dropped.
      pace: parameter b of Pisces; None to always wait for B answers. The server also steps as soon
        as it has an answer and L / b seconds have passed since its last step. L is the maximum of
        the most recent latencies of the clients in flight (infinite if any client in flight has
        never answered). If latencies are constant and the B-th answer never triggers a step,
        staleness never exceeds ceil(b).
    """

    name: ClassVar[str] = "asynchronous"
    summary: ClassVar[str] = "overlapping rounds, as in FedAsync and FedBuff"

    concurrency: int = static(default=10, at_least=1)
    buffer: int = static(default=5, at_least=1)
    open_slots: int | None = static(default=None, at_least=1, optional=True, kind=int)
    staleness: StalenessWeight = node(factory=Polynomial, of=StalenessWeight)
    max_staleness: float | None = number(default=None, at_least=0, optional=True)
    pace: float | None = number(default=None, above=0, optional=True)

    def asked_for(self, num_selected: int) -> int:
        return num_selected if self.open_slots is None else self.open_slots

    def answers(self, cohort_size: int) -> int:
        return self.buffer

    def overlaps(self, cohort_size: int) -> bool:
        return self.pace is not None or not self.concurrency == self.buffer == cohort_size

    def check(self, path: str, sizes: Sizes) -> None:
        clients = sizes.num_clients
        for name, value in (("concurrency", self.concurrency), ("buffer", self.buffer)):
            if value > clients:
                raise ConfigError(
                    f"{path}.{name} = {value}: must be <= num_clients = {clients}, because a "
                    f"client has at most one update in flight or buffered. Lower {path}.{name} or "
                    "raise num_clients."
                )
        if sizes.cohort_size > self.concurrency:
            raise ConfigError(
                f"{path}.concurrency = {self.concurrency}: must be >= {sizes.cohort_size}, the "
                f"number of clients that the policy chooses at a time. Raise {path}.concurrency, "
                f"or set {path}.open_slots = 1."
            )
