"""When a round ends, and whose updates are there by then."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Selection
from pause_jax.config import SimConfig

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Arrival(NamedTuple):
    """The end of a round.

    Attributes:
      seconds: that the server waited, a scalar; 0 if nobody takes part.
      in_time: bool [m], whose update arrived by then.
      stale: bool [m], whose update was on its way.
      observed: float [m], seconds that the server saw each client take: of one that is late, those
        that it waited; of an empty slot, those of the round, or 1.
    """

    seconds: Float[Array, ""]
    in_time: Bool[Array, " m"]
    stale: Bool[Array, " m"]
    observed: Float[Array, " m"]


def arrival_of(config: SimConfig, latency: Array, active: Array, answering: Array) -> Arrival:
    """End a round by the config's rule.

    Without a rule it lasts as long as its slowest client, (3). One that sends nothing takes its
    time all the same: the server notices when its answer should have come.

    Args:
      config: its ``deadline`` and ``wait_for``.
      latency: float [m], seconds that each client takes.
      active: bool [m], False for an empty slot.
      answering: bool [m], those of them that send an update, however late.
    """
    end = jnp.max(jnp.where(active, latency, 0.0))
    if config.wait_for is not None:
        arriving = jnp.sort(jnp.where(answering, latency, jnp.inf))
        end = jnp.minimum(end, arriving[config.wait_for - 1])
    if config.deadline is not None:
        end = jnp.minimum(end, config.deadline)
    by_then = latency <= end
    # Nothing of an empty slot's client; finite, as policies may multiply it by a weight of 0.
    observed = jnp.where(active, jnp.minimum(latency, end), jnp.where(end > 0, end, 1.0))
    return Arrival(end, answering & by_then, answering & ~by_then, observed)


def can_miss_average(config: SimConfig) -> bool:
    """Return whether the update of a chosen client may miss its round's average."""
    rules = (config.dropout, config.deadline, config.wait_for)
    has_rule = any(rule is not None for rule in rules)
    return has_rule or config.when_spent == "drop" or config.latency.drops


def only_received(selection: Selection, received: Array) -> Selection:
    """Give the weights of slots whose update does not arrive to the others."""
    weights = jnp.where(received, selection.weights, 0.0)
    arrived = jnp.sum(weights)
    total = jnp.sum(selection.weights)
    return selection._replace(weights=weights * total / jnp.where(arrived > 0, arrived, 1.0))
