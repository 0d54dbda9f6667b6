"""When the server steps: after each round, or whenever enough updates are there.

``docs/guides/event_clock.md`` has the semantics of :class:`Asynchronous` and an example by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
from jax import Array

from pause_jax.base.struct import Config, ConfigError, Sizes, node, number, static

if TYPE_CHECKING:
    from jaxtyping import Float


class StalenessWeight(Config):
    """By how much an update counts less that started from an older model."""

    def factor(self, staleness: Array) -> Float[Array, ...]:
        """Return the factor of an update's weight, in (0, 1], and 1 at a staleness of 0.

        ``staleness`` is the float number of server steps from an update's download to its average.
        """
        raise NotImplementedError


class Polynomial(StalenessWeight):
    """(1 + staleness)^-a: FedBuff with a = 1/2 (Nguyen et al. 2022), FedAsync's "Poly".

    Attributes:
      exponent: a; 0 weighs all updates the same.
    """

    name: ClassVar[str] = "polynomial"
    summary: ClassVar[str] = "(1 + staleness)^-a, 1/2 in FedBuff"

    exponent: float = number(default=0.5, at_least=0)

    def factor(self, staleness: Array) -> Float[Array, ...]:
        # Exactly 1 at 0, whatever a power costs in rounding.
        return jnp.where(staleness > 0, (1.0 + staleness) ** -self.exponent, 1.0)


class Equal(StalenessWeight):
    """Weighs all updates the same, however stale."""

    name: ClassVar[str] = "equal"
    summary: ClassVar[str] = "the same for all updates"

    def factor(self, staleness: Array) -> Float[Array, ...]:
        return jnp.ones_like(staleness)


class Hinge(StalenessWeight):
    """1 up to a staleness b, then 1 / (a (staleness - b) + 1): FedAsync (Xie et al. 2019).

    Attributes:
      slope: a.
      grace: b, server steps.
    """

    name: ClassVar[str] = "hinge"
    summary: ClassVar[str] = "1 up to a staleness, then 1 / (a (staleness - b) + 1)"

    slope: float = number(default=10.0, at_least=0)
    grace: float = number(default=4.0, at_least=0)

    def factor(self, staleness: Array) -> Float[Array, ...]:
        return 1.0 / (self.slope * jnp.maximum(staleness - self.grace, 0.0) + 1.0)


class Clock(Config):
    """When the server averages updates and when clients start."""

    def asked_for(self, num_selected: int) -> int:
        """Clients that a policy is asked for at a time."""
        return num_selected

    def answers(self, cohort_size: int) -> int:
        """Answers of clients that a server step waits for at most."""
        return cohort_size

    def overlaps(self, cohort_size: int) -> bool:
        """Whether clients may start while others are under way."""
        return False


class Synchronous(Clock):
    """Rounds: a cohort starts together, and the next one when the round has ended."""

    name: ClassVar[str] = "synchronous"
    summary: ClassVar[str] = "rounds, one after the other"


class Asynchronous(Clock):
    """Clients start while others are under way; the server steps with every ``buffer``-th answer.

    ``SimConfig.num_rounds`` then counts server steps. With B = 1 clients come as in FedAsync, with
    C > B as in FedBuff. B = C = O without a pace is the synchronous round, and runs its program.

    Attributes:
      concurrency: C, clients under way at a time (static).
      buffer: B, answers between two server steps (static).
      open_slots: O, slots that must be free before clients start; the policy is asked for that
        many. None for ``num_selected`` (static).
      staleness: how the weight of an update falls with its staleness.
      max_staleness: server steps; an older update is dropped. None for no such bound.
      pace: b of Pisces. The server also steps, with B answers not there, once a b-th of the longest
        last latency of the clients under way has passed since its last step: while latencies stay
        the same, no update is staler than b, rounded up. It waits for the first answer of each
        client. None to wait for B answers.
    """

    name: ClassVar[str] = "asynchronous"
    summary: ClassVar[str] = "rounds that overlap: FedAsync, FedBuff"

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
                    f"{path}.{name} = {value}: must be <= num_clients = {clients}, as no client "
                    "is under way or in the buffer twice. Lower it, or make the network larger."
                )
        if sizes.cohort_size > self.concurrency:
            raise ConfigError(
                f"{path}.concurrency = {self.concurrency}: must be >= {sizes.cohort_size}, the "
                f"clients that the policy is asked for at a time. Raise it, or set {path}"
                ".open_slots = 1."
            )
