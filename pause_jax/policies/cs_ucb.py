"""CS-UCB and CS-UCB-Q: bandits on latency alone, the second with fairness queues.

Source: Xia et al., "Multi-armed bandit-based client scheduling for federated learning", IEEE
TWC 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.bandit.stats import ClientStats, empty_stats, ucb_index, update_stats
from pause_jax.base.struct import number
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size, mask_of, next_queue, top_clients

if TYPE_CHECKING:
    from jaxtyping import Float


class CsUcb(PolicyConfig):
    """The m largest upper confidence bounds on the reward 1 - min(tau, tau_max) / tau_max.

    Attributes:
      max_latency: tau_max, seconds; a slower client counts as failed.
    """

    name: ClassVar[str] = "cs_ucb"
    summary: ClassVar[str] = "the m largest UCBs on latency"
    observes: ClassVar[str] = "latency"
    assumes: ClassVar[str] = "tau_max"
    reference: ClassVar[str] = "Xia et al. 2020"

    max_latency: float = number(default=1.0, above=0)

    def build(self, context: Context) -> Policy:
        def select(key: Array, stats: ClientStats, round: Array, available: Array) -> Selected:
            score = ucb_index(stats, round, context.num_selected)
            clients = top_clients(score, available, context.num_selected, key)
            return by_data_size(clients, available, context), no_info()

        def update(
            stats: ClientStats, selection: Selection, observation: Observation
        ) -> ClientStats:
            reward = _reward(observation.latency, self.max_latency)
            return update_stats(stats, selection.clients, reward, selection.active)

        return Policy(lambda: empty_stats(context.num_clients), select, update)


class QueueState(NamedTuple):
    """State of CS-UCB-Q."""

    stats: ClientStats  # counts and mean rewards
    queue: Float[Array, " K"]  # D_k as of the last choice
    chosen: Float[Array, " K"]  # b_k of the last round, 0 or 1


class CsUcbQ(PolicyConfig):
    """CS-UCB with a virtual queue for each client, so that each takes part often enough.

    Before the choice of round t: D_k <- max(D_k + c_k - b_k(t - 1), 0) with c_k = phi m p_k; then
    the m largest of (1 - beta) min(mean + sqrt(2 ln t / T), 1) + beta D_k.

    Attributes:
      queue_weight: beta in (0, 1), weight of the queue.
      fairness: phi in (0, 1], share of proportional participation that is asked for.
      max_latency: tau_max, seconds.
    """

    name: ClassVar[str] = "cs_ucb_q"
    summary: ClassVar[str] = "truncated UCB on latency and fairness queues"
    observes: ClassVar[str] = "latency"
    assumes: ClassVar[str] = "tau_max, data sizes"
    reference: ClassVar[str] = "Xia et al. 2020"

    queue_weight: float = number(default=0.5, above=0, at_most=1)
    fairness: float = number(default=0.5, above=0, at_most=1)
    max_latency: float = number(default=1.0, above=0)

    def build(self, context: Context) -> Policy:
        size = context.data_size
        target = self.fairness * context.num_selected * size / jnp.sum(size)

        def init() -> QueueState:
            zero = jnp.zeros(context.num_clients)
            return QueueState(empty_stats(context.num_clients), zero, zero)

        def select(key: Array, state: QueueState, round: Array, available: Array) -> Selected:
            # sqrt(2 ln t / T): the bandit's index with m = 1; untried clients count as 1.
            bound = jnp.minimum(ucb_index(state.stats, round, 1), 1.0)
            queue = next_queue(state.queue, target, state.chosen)
            score = (1 - self.queue_weight) * bound + self.queue_weight * queue
            clients = top_clients(score, available, context.num_selected, key)
            return by_data_size(clients, available, context), no_info()

        def update(state: QueueState, selection: Selection, observation: Observation) -> QueueState:
            active = selection.active
            reward = _reward(observation.latency, self.max_latency)
            chosen = mask_of(selection.clients, active, context.num_clients)
            return QueueState(
                stats=update_stats(state.stats, selection.clients, reward, active),
                queue=next_queue(state.queue, target, state.chosen),
                chosen=chosen.astype(state.chosen.dtype),
            )

        return Policy(init, select, update)


def _reward(latency: Array, max_latency: Array | float) -> Array:
    """1 for no time at all, 0 for tau_max or more; latencies in seconds."""
    return 1 - jnp.minimum(latency, max_latency) / max_latency
