"""RBCS-F: a contextual bandit on latency with fairness queues.

Source: Huang et al., "An efficiency-boosting client selection scheme for federated learning with
fairness guarantee", IEEE TPDS 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.bandit.search import exact
from pause_jax.base.struct import number
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size, mask_of, next_queue, resource_request

if TYPE_CHECKING:
    from jaxtyping import Float


class RbcsState(NamedTuple):
    """State of RBCS-F. The context has C = F + 1 entries."""

    # Reported before this round: the features, and whether the client took part in the last one.
    context: Float[Array, "K C"]
    chosen: Float[Array, " K"]  # whether it took part in the round before, 0 or 1
    gram: Float[Array, "K C C"]  # H_k = lambda I + sum of c c^T
    inverse: Float[Array, "K C C"]  # its inverse
    moment: Float[Array, "K C"]  # b_k = sum of tau c
    queue: Float[Array, " K"]  # Z_k


class RbcsF(PolicyConfig):
    """Minimise V max taubar - sum Z: optimistic latencies, and queues that keep clients in turn.

    taubar_k = max(c^T theta_k - a sqrt(c^T H_k^-1 c), 0), theta_k = H_k^-1 b_k, by ridge regression
    for each client on its reported context c. After the choice Z_k <- max(Z_k + beta - x_k, 0).
    The subproblem is the maximisation of PAUSE with index -V taubar and weight Z: solved exactly.

    Attributes:
      latency_weight: V, of the latency against the queues, a queue unit a second.
      fairness: phi in [0, 1]: every client is to take part in beta = phi m / K of the rounds; more
        cannot be kept. (The published code sets beta itself, 0.15.)
      exploration: a, width of the confidence bound.
      ridge: lambda.
      query_seconds: what the reports before each choice cost, seconds a round.
    """

    name: ClassVar[str] = "rbcs_f"
    summary: ClassVar[str] = "contextual bandit on latency and fairness queues"
    observes: ClassVar[str] = "latency, reported context"
    assumes: ClassVar[str] = "nothing"
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

        def init() -> RbcsState:
            eye = jnp.broadcast_to(jnp.eye(width), (num_clients, width, width))
            return RbcsState(
                context=jnp.zeros((num_clients, width)),
                chosen=jnp.zeros(num_clients),
                gram=self.ridge * eye,
                inverse=eye / self.ridge,
                moment=jnp.zeros((num_clients, width)),
                queue=jnp.zeros(num_clients),
            )

        def ask(
            key: Array, state: RbcsState, round: Array, available: Array
        ) -> tuple[Array, Array]:
            return jnp.arange(num_clients), available

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
            moment = state.moment[clients] + observation.latency[:, None] * c
            chosen = mask_of(clients, active, num_clients).astype(state.chosen.dtype)
            return RbcsState(
                context=state.context,
                chosen=chosen,
                gram=state.gram.at[clients].set(gram),
                inverse=state.inverse.at[clients].set(jnp.linalg.inv(gram)),
                moment=state.moment.at[clients].set(moment),
                queue=next_queue(state.queue, target, chosen),
            )

        return Policy(init, select, update, resource_request(ask, receive, self.query_seconds))


def optimistic_latency(state: RbcsState, exploration: Array | float) -> Array:
    """Lower confidence bound on every client's latency in seconds, cut at 0, float [K]."""
    c = state.context
    theta = jnp.einsum("kij,kj->ki", state.inverse, state.moment)
    width = jnp.sqrt(jnp.maximum(jnp.einsum("ki,kij,kj->k", c, state.inverse, c), 0.0))
    return jnp.maximum(jnp.sum(c * theta, axis=1) - exploration * width, 0.0)
