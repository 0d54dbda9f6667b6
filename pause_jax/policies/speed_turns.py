"""Speed turns: clients take turns in cohorts of similar estimated speed."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.bandit.search.problem import ordered
from pause_jax.base.struct import node
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size, mask_of
from pause_jax.policies.index import IndexRule, Ucb


class TurnsState(NamedTuple):
    """State of :class:`SpeedTurns`."""

    index: Any  # state of the index rule
    due: Bool[Array, " K"]  # clients that have not had a turn in this cycle


class SpeedTurns(PolicyConfig):
    """Selection of the fastest clients, by estimated speed, among those due in the current cycle.

    Each client takes part at most once per cycle. If fewer than m due clients are available, the
    fastest other available clients join them and start the next cycle.

    Attributes:
      index: index rule that estimates speeds optimistically.
    """

    name: ClassVar[str] = "speed_turns"
    summary: ClassVar[str] = "clients take turns in cohorts of similar estimated speed"
    observes: ClassVar[str] = "latency"
    assumes: ClassVar[str] = "tau_min"
    reference: ClassVar[str] = "ours"

    index: IndexRule = node(factory=Ucb, of=IndexRule)

    def build(self, context: Context) -> Policy:
        num_clients = context.num_clients
        index = self.index.build(context)

        def init() -> TurnsState:
            return TurnsState(index.init(), jnp.ones(num_clients, bool))

        def select(key: Array, state: TurnsState, round: Array, available: Array) -> Selected:
            index_key, tie_key = jax.random.split(key)
            speed = index.value(index_key, state.index, round)
            place = jnp.argsort(ordered(speed, jnp.ones(num_clients, bool), tie_key))
            due_first = jnp.where(state.due, num_clients, 0) - place
            clients = ordered(due_first, available, None)[: context.num_selected]
            return by_data_size(clients, available, context), no_info()

        def update(state: TurnsState, selection: Selection, observation: Observation) -> TurnsState:
            speed = context.min_latency / observation.latency
            chosen = mask_of(selection.clients, selection.active, num_clients)
            ahead = chosen & ~state.due  # clients that start the next cycle
            due = jnp.where(jnp.any(ahead), ~ahead, state.due & ~chosen)
            return TurnsState(index.update(state.index, selection, speed, observation), due)

        return Policy(init, select, update)
