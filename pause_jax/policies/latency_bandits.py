"""Latency bandits CS-UCB, CS-UCB-Q and RBCS-F, the last two with fairness queues.

Source: Xia et al., "Multi-armed bandit-based client scheduling for federated learning", IEEE
TWC 2020; Huang et al., "An efficiency-boosting client selection scheme for federated learning with
fairness guarantee", IEEE TPDS 2021.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.bandit.search import exact
from pause_jax.bandit.stats import ClientStats, empty_stats, ucb_index, update_stats
from pause_jax.base.struct import number
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import (
    ask_everyone,
    by_data_size,
    inverse_and_log_det,
    mask_of,
    resource_request,
    top_clients,
)


class CsUcb(PolicyConfig):
    """Selection of the m clients with the largest UCBs on the reward 1 - min(tau / tau_max, 1).

    Attributes:
      max_latency: tau_max, in seconds. Latencies of tau_max or more yield a reward of 0.
    """

    name: ClassVar[str] = "cs_ucb"
    summary: ClassVar[str] = "the m clients with the largest UCBs on a latency reward"
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
    """CS-UCB-Q state."""

    stats: ClientStats  # counts and mean rewards
    queue: Float[Array, " K"]  # D_k at the next selection


class CsUcbQ(PolicyConfig):
    """CS-UCB with per-client virtual queues that enforce minimum participation rates.

    Before each selection, queue D_k is set to max(D_k + phi m p_k - b_k, 0), where p_k is client
    k's data share, and b_k is 1 if the client was in the last cohort, else 0. The policy selects
    the m clients with the largest scores (1 - beta) min(mean + sqrt(2 ln t / T_k), 1) + beta D_k.

    Attributes:
      queue_weight: beta in (0, 1], weight of the queue.
      fairness: phi in (0, 1], required participation rate as a fraction of m p_k.
      max_latency: tau_max, in seconds. The reward is 0 at latencies of tau_max or more.
    """

    name: ClassVar[str] = "cs_ucb_q"
    summary: ClassVar[str] = "truncated UCB on latency, with fairness queues"
    observes: ClassVar[str] = "latency"
    assumes: ClassVar[str] = "tau_max, data sizes"
    reference: ClassVar[str] = "Xia et al. 2020"

    queue_weight: float = number(default=0.5, above=0, at_most=1)
    fairness: float = number(default=0.5, above=0, at_most=1)
    max_latency: float = number(default=1.0, above=0)

    def build(self, context: Context) -> Policy:
        size = context.data_size
        target = self.fairness * context.num_selected * size / jnp.sum(size)
        start = QueueState(empty_stats(context.num_clients), target)

        def select(key: Array, state: QueueState, round: Array, available: Array) -> Selected:
            # With m = 1, the bonus is sqrt(2 ln t / T_k). An untried client's bound is 1.
            bound = jnp.minimum(ucb_index(state.stats, round, 1), 1.0)
            score = (1 - self.queue_weight) * bound + self.queue_weight * state.queue
            clients = top_clients(score, available, context.num_selected, key)
            return by_data_size(clients, available, context), no_info()

        def update(state: QueueState, selection: Selection, observation: Observation) -> QueueState:
            reward = _reward(observation.latency, self.max_latency)
            chosen = mask_of(selection.clients, selection.active, context.num_clients)
            return QueueState(
                stats=update_stats(state.stats, selection.clients, reward, selection.active),
                queue=next_queue(state.queue, target, chosen.astype(state.queue.dtype)),
            )

        return Policy(lambda: start, select, update)


def _reward(latency: Array, max_latency: Array | float) -> Array:
    """Convert latencies in seconds to rewards, from 1 at 0 s down to 0 at ``max_latency``."""
    return 1 - jnp.minimum(latency, max_latency) / max_latency


class RbcsState(NamedTuple):
    """RBCS-F state. A client's context has C = F + 1 entries."""

    context: Float[Array, "K C"]  # latency features, then participation in the last round
    chosen: Float[Array, " K"]  # participation in the last round, 0 or 1
    gram: Float[Array, "K C C"]  # H_k = lambda I + sum of c c^T
    inverse: Float[Array, "K C C"]  # H_k^-1
    moment: Float[Array, "K C"]  # b_k = sum of tau c
    queue: Float[Array, " K"]  # Z_k


class RbcsF(PolicyConfig):
    """Selection that minimises V max taubar - sum Z, with optimistic latencies and fairness queues.

    The optimistic latency of client k with context c is taubar_k = max(c^T theta_k - a sqrt(c^T
    H_k^-1 c), 0). The ridge regression estimate theta_k = H_k^-1 b_k comes from the client's past
    rounds. After each selection, Z_k <- max(Z_k + beta - x_k, 0), where x_k is 1 if client k was
    chosen, else 0. Exact search applies, because the objective has the form of Eq. (14) of PAUSE.

    Attributes:
      latency_weight: V, weight of the latency, in queue units per second.
      fairness: phi in [0, 1], required participation rate beta as a fraction of m / K.
      exploration: a, scale of the confidence width.
      ridge: lambda, ridge penalty.
      query_seconds: duration of each round's query, in seconds.
    """

    name: ClassVar[str] = "rbcs_f"
    summary: ClassVar[str] = "contextual bandit on latency, with fairness queues"
    observes: ClassVar[str] = "latency, reported context"
    reference: ClassVar[str] = "Huang et al. 2021"
    alone: ClassVar[bool] = True

    latency_weight: float = number(default=10.0, above=0)
    fairness: float = number(default=0.5, at_least=0, at_most=1)
    exploration: float = number(default=0.1, at_least=0)
    ridge: float = number(default=1.0, above=0)
    query_seconds: float = number(default=0.01, at_least=0)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        width = context.num_features + 1
        target = self.fairness * m / num_clients
        eye = jnp.broadcast_to(jnp.eye(width), (num_clients, width, width))
        start = RbcsState(
            context=jnp.zeros((num_clients, width)),
            chosen=jnp.zeros(num_clients),
            gram=self.ridge * eye,
            inverse=eye / self.ridge,
            moment=jnp.zeros((num_clients, width)),
            queue=jnp.zeros(num_clients),
        )

        def receive(state: RbcsState, clients: Array, asked: Array, answer: Answer) -> RbcsState:
            reported = jnp.concatenate([answer.features, state.chosen[:, None]], axis=1)
            return state._replace(context=jnp.where(asked[:, None], reported, 0.0))

        def select(key: Array, state: RbcsState, round: Array, available: Array) -> Selected:
            index = -self.latency_weight * optimistic_latency(state, self.exploration)
            clients, _ = exact(index, state.queue, m, available=available, key=key)
            return by_data_size(clients, available, context), no_info()

        def update(state: RbcsState, selection: Selection, observation: Observation) -> RbcsState:
            clients, active = selection.clients, selection.active
            c = jnp.where(active[:, None], state.context[clients], 0.0)
            gram = state.gram[clients] + c[:, :, None] * c[:, None, :]
            inverse, _ = inverse_and_log_det(gram)
            moment = state.moment[clients] + observation.latency[:, None] * c
            chosen = mask_of(clients, active, num_clients).astype(state.chosen.dtype)
            return RbcsState(
                context=state.context,
                chosen=chosen,
                gram=state.gram.at[clients].set(gram),
                inverse=state.inverse.at[clients].set(inverse),
                moment=state.moment.at[clients].set(moment),
                queue=next_queue(state.queue, target, chosen),
            )

        query = resource_request(ask_everyone, receive, self.query_seconds)
        return Policy(lambda: start, select, update, query)


def optimistic_latency(state: RbcsState, exploration: Array | float) -> Array:
    """Compute non-negative lower confidence bounds on the latencies in seconds, float [K]."""
    c = state.context
    theta = jnp.einsum("kij,kj->ki", state.inverse, state.moment)
    width = jnp.sqrt(jnp.maximum(jnp.einsum("ki,kij,kj->k", c, state.inverse, c), 0.0))
    return jnp.maximum(jnp.sum(c * theta, axis=1) - exploration * width, 0.0)


def next_queue(queue: Array, target: Array | float, chosen: Array) -> Array:
    """Return the virtual queues after one more round, float [K].

    If a queue stays bounded, its client's long-run participation rate is at least ``target``.
    """
    return jnp.maximum(queue + target - chosen, 0.0)
