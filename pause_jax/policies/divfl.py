"""DivFL: selection of the clients whose updates best represent all clients' updates.

Source: Balakrishnan et al., "Diverse client selection for federated learning via submodular
maximization", ICLR 2022, and the authors' code.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.baselines import Random
from pause_jax.policies.choose import mask_of, top_clients


class DivFlState(NamedTuple):
    """DivFL state."""

    updates: Float[Array, "K d"]  # last update received from each client (initially 0)
    distance: Float[Array, "K K"]  # Euclidean distances between the updates
    seen: Bool[Array, " K"]  # whether the server has received an update from the client


class DivFl(PolicyConfig):
    """Greedy minimisation of sum_k min_{i in S} ``|g_k - g_i|`` over cohorts S (facility location).

    g_k is the last clipped and noised update from client k. As in the paper's variant without
    overhead, only the g_k of chosen clients change. Clients whose first update has not arrived are
    selected first, in random order. (The authors' code instead collects all clients' gradients in
    round 1.) A client's weight is proportional to the number of clients it represents (in the
    authors' code, to its data size). Without a model, the policy falls back to ``random``.
    """

    name: ClassVar[str] = "divfl"
    summary: ClassVar[str] = "a diverse cohort, chosen by facility location on client updates"
    reads: ClassVar[tuple[str, ...]] = ("update",)
    observes: ClassVar[str] = "noised updates"
    reference: ClassVar[str] = "Balakrishnan et al. 2022"
    alone: ClassVar[bool] = True

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        if context.update_size == 0:
            return Random().build(context)
        start = DivFlState(
            updates=jnp.zeros((num_clients, context.update_size)),
            distance=jnp.zeros((num_clients, num_clients)),
            seen=jnp.zeros(num_clients, bool),
        )

        def select(key: Array, state: DivFlState, round: Array, available: Array) -> Selected:
            sweep_key, order_key, fill_key = jax.random.split(key, 3)
            fresh = available & ~state.seen
            swept = top_clients(fresh.astype(jnp.float32), available, m, sweep_key)
            swept = mask_of(swept, fresh[swept], num_clients)
            order = jax.random.permutation(order_key, num_clients)
            rank = greedy(state.distance, state.seen, available & state.seen, m, order)
            clients = top_clients(jnp.where(swept, jnp.inf, rank), available, m, fill_key)
            shares = neighbours(state.distance, state.seen, clients, available[clients])
            return Selection(clients, shares), no_info()

        def update(state: DivFlState, selection: Selection, observation: Observation) -> DivFlState:
            clients = selection.clients
            received = selection.active & observation.received
            updates = store_active(state.updates, clients, observation.update, received)
            rows = lax.map(
                lambda one: jnp.linalg.norm(updates - one[None, :], axis=1), updates[clients]
            )
            rows = jnp.nan_to_num(rows, nan=_FAR, posinf=_FAR)
            distance = state.distance.at[clients].set(rows).at[:, clients].set(rows.T)
            seen = store_active(state.seen, clients, received, received)
            return DivFlState(updates, distance, seen)

        return Policy(lambda: start, select, update)


# Distance assigned to non-finite updates. Its sum over all clients stays finite in float32.
_FAR = 1e30


def greedy(
    distance: Float[Array, "K K"],
    known: Bool[Array, " K"],
    among: Bool[Array, " K"],
    count: int,
    order: Int[Array, " K"],
) -> Float[Array, " K"]:
    """Choose clients, and return ranks, float [K], from ``count`` (chosen first) to 0 (not chosen).

    Each step adds the client in ``among`` that minimises the total distance from ``known`` clients
    to their nearest chosen clients. Ties are broken by ``order``.
    """

    def take(step: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
        nearest, rank = so_far
        left = among & (rank == 0)
        after = jnp.minimum(nearest[:, None], distance)
        cost = jnp.sum(jnp.where(known[:, None], after, 0.0), axis=0)
        cost = jnp.where(left, cost, jnp.inf)
        best = order[jnp.argmin(cost[order])]
        rank = jnp.where(left[best], rank.at[best].set(count - step), rank)
        return jnp.where(left[best], after[:, best], nearest), rank

    nothing = jnp.full(distance.shape[0], jnp.inf), jnp.zeros(distance.shape[0])
    return lax.fori_loop(0, count, take, nothing)[1]


def neighbours(
    distance: Float[Array, "K K"],
    known: Bool[Array, " K"],
    clients: Int[Array, " m"],
    active: Bool[Array, " m"],
) -> Float[Array, " m"]:
    """Return the share of clients that each chosen client represents, float [m], summing to one.

    A chosen client represents itself and the unchosen ``known`` clients nearest to it. Ties go to
    the earlier client in ``clients``. Chosen clients outside ``known`` represent only themselves.
    """
    chosen = mask_of(clients, active, distance.shape[0])
    apart = jnp.where((active & known[clients])[None, :], distance[:, clients], jnp.inf)
    nearest = jnp.argmin(apart, axis=1)
    covered = known & ~chosen & jnp.any(jnp.isfinite(apart), axis=1)
    count = active + jnp.zeros(len(clients)).at[nearest].add(covered)
    return count / jnp.maximum(jnp.sum(count), 1.0)
