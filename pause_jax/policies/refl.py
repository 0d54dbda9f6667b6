"""REFL: selection of clients that are available now but are unlikely to be available later.

Source: Abdelmoniem et al., "REFL: resource-efficient federated learning", EuroSys 2023.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.base.struct import number
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import (
    ask_everyone,
    by_data_size,
    mask_of,
    resource_request,
    top_clients,
)


class ReflState(NamedTuple):
    """REFL state."""

    clock: Float[Array, ""]  # end of the last round in seconds; -1 if unknown
    slot: Float[Array, ""]  # mu, moving average of round durations in seconds
    due: Int[Array, ""]  # number of late updates that the next average includes


class Refl(PolicyConfig):
    """Selection of the clients least likely to be available in the next time slot.

    The next slot runs from mu to 2 mu seconds from now. After a round of D seconds, mu <- (1 -
    alpha) D + alpha mu. All available clients report their probability of being available in the
    slot. In the simulation, this probability is the smaller of the availability forecasts for the
    start and end of the slot (``Context.forecast``). The cohort has max(1, m - s) clients, where s
    is the number of late updates that enter the next average (``stale_updates="next"``). Ties are
    broken at random. All clients are tied if the run has no trace or the server has no clock.

    Set ``Learning(stale_damping=0.35)`` to weight stale updates as in REFL.

    Attributes:
      memory: alpha, weight of the previous mu.
      query_seconds: duration of each round's query, in seconds.
    """

    name: ClassVar[str] = "refl"
    summary: ClassVar[str] = "clients that are available now but unlikely to be available later"
    observes: ClassVar[str] = "reported forecasts, durations, stragglers"
    assumes: ClassVar[str] = "expected latencies, forecasts of availability"
    reference: ClassVar[str] = "Abdelmoniem et al. 2023"
    alone: ClassVar[bool] = True

    memory: float = number(default=0.25, at_least=0, at_most=1)
    query_seconds: float = number(default=0.01, at_least=0)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        slot = jnp.mean(context.expected_latency).astype(jnp.float32)
        start = ReflState(jnp.zeros((), jnp.float32), slot, jnp.zeros((), jnp.int32))

        def select(key: Array, state: ReflState, round: Array, available: Array) -> Selected:
            likely = jnp.ones(num_clients)
            if context.forecast is not None:
                ends = [context.forecast(state.clock, n * state.slot) for n in (1.0, 2.0)]
                likely = jnp.where(state.clock >= 0, jnp.minimum(*ends), 1.0)
            clients = top_clients(-likely, available, m, key)
            wanted = jnp.arange(m) < jnp.maximum(m - state.due, 1)
            chosen = available & mask_of(clients, wanted, num_clients)
            return by_data_size(clients, chosen, context), no_info()

        def update(state: ReflState, selection: Selection, observation: Observation) -> ReflState:
            active = selection.active
            lasted = jnp.max(jnp.where(active, observation.latency, 0.0))
            slot = (1 - self.memory) * lasted + self.memory * state.slot
            clock = jnp.asarray(observation.clock, jnp.float32)
            return ReflState(
                clock=jnp.where(jnp.isnan(clock), -1.0, clock),
                slot=jnp.where(jnp.any(active), slot, state.slot).astype(state.slot.dtype),
                due=jnp.sum(active & observation.late, dtype=jnp.int32),
            )

        query = resource_request(ask_everyone, lambda state, *_: state, self.query_seconds)
        return Policy(lambda: start, select, update, query)
