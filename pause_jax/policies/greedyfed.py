"""GreedyFed: selection of the clients that reduced the server's validation loss the most.

Source: Singhal, Pandey and Popovski, "Greedy Shapley client selection for communication-efficient
federated learning", IEEE Networking Letters 2024 (arXiv 2312.09108), and the authors' code. The
Shapley values follow GTG-Shapley (Liu et al., ACM TIST 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.base.struct import ConfigError, number, static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.baselines import Random
from pause_jax.policies.choose import by_data_size, top_clients

# Validation loss that replaces NaN and +inf.
_WORST = 1e6


class GreedyState(NamedTuple):
    """GreedyFed state."""

    round: Int[Array, ""]  # number of past rounds
    value: Float[Array, " K"]  # average Shapley value of each client
    times: Int[Array, " K"]  # number of Shapley values in the average


class GreedyFed(PolicyConfig):
    """Selection of the m clients with the largest average Shapley values.

    The value of a coalition in a cohort is the negative validation loss after averaging only the
    coalition's clipped and noised updates. Shapley values are averaged over permutations of the
    cohort. Each client comes first in equally many permutations. The other clients follow in a
    random order that is the same in every run. Unlike the authors' code, this policy does not stop
    early once the values converge. Clients without a Shapley value are selected first, at random.
    ``learning.validation`` must be > 0. Without a model, the policy falls back to ``random``.

    Attributes:
      sweeps: number of permutations in which each client comes first.
      tolerance: threshold below which a change in validation loss counts as 0. Once a coalition's
        loss is this close to the whole cohort's, the remaining clients in the permutation add 0. If
        the whole cohort changes the loss by less, all Shapley values in the round are 0.
    """

    name: ClassVar[str] = "greedyfed"
    summary: ClassVar[str] = "largest Shapley values on the server's validation samples"
    reads: ClassVar[tuple[str, ...]] = ("server_loss",)
    observes: ClassVar[str] = "noised updates"
    assumes: ClassVar[str] = "data sizes, validation samples on the server"
    reference: ClassVar[str] = "Singhal et al. 2024"
    alone: ClassVar[bool] = True

    sweeps: int = static(default=2, at_least=1)
    tolerance: float = number(default=1e-4, at_least=0)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        if context.update_size == 0:
            return Random().build(context)
        if not context.validates:
            raise ConfigError(
                f"policy = {self.name}: needs validation samples on the server. Set "
                "learning.validation = 100, for example, to reserve 100 test samples."
            )
        never = jnp.zeros(num_clients, jnp.int32)
        start = GreedyState(jnp.zeros((), jnp.int32), jnp.zeros(num_clients), never)

        def select(key: Array, state: GreedyState, round: Array, available: Array) -> Selected:
            rank = jnp.where(state.times > 0, state.value, jnp.inf)
            clients = top_clients(rank, available, m, key)
            return by_data_size(clients, available, context), no_info()

        def update(
            state: GreedyState, selection: Selection, observation: Observation
        ) -> GreedyState:
            clients = selection.clients
            received = selection.active & observation.received
            order_key = jax.random.fold_in(jax.random.key(0), state.round)
            assert observation.server_loss is not None
            worth = shapley(
                coalition_value(observation.server_loss, selection.weights, received),
                permutations(order_key, clients.size, self.sweeps),
                self.tolerance,
            )
            count, old = state.times[clients] + 1, state.value[clients]
            kept = 1 - 1 / count
            new = jnp.where(count == 1, worth, kept * old + (1 - kept) * worth)
            return GreedyState(
                round=state.round + 1,
                value=store_active(state.value, clients, new, received),
                times=store_active(state.times, clients, count, received),
            )

        return Policy(lambda: start, select, update)


def coalition_value(
    loss: Callable[[Array], Array], weights: Float[Array, " m"], received: Bool[Array, " m"]
) -> Callable[[Array], Array]:
    """Return the function that maps a coalition, bool [m], to its negative validation loss.

    ``loss`` maps aggregation weights [m] to the validation loss. Weights are scaled to sum to
    one, with weight 0 for clients whose update was not received.
    """

    def value(members: Array) -> Array:
        weight = jnp.where(members & received, weights, 0.0)
        total = jnp.sum(weight)
        average_loss = loss(weight / jnp.where(total > 0, total, 1.0))
        return -jnp.nan_to_num(average_loss, nan=_WORST, posinf=_WORST)

    return value


def permutations(key: Array, size: int, sweeps: int) -> Array:
    """Draw permutations, int [sweeps * size, size]. Each index comes first in ``sweeps`` rows."""
    lead = jnp.tile(jnp.arange(size), sweeps)
    score = jax.random.uniform(key, (sweeps * size, size))
    return jnp.argsort(score.at[jnp.arange(sweeps * size), lead].set(-1.0), axis=1)


def shapley(
    value: Callable[[Array], Array], orders: Int[Array, "R m"], tolerance: Array | float
) -> Float[Array, " m"]:
    """Return each client's mean marginal contribution over R permutations, float [m].

    ``value`` maps a coalition, bool [m], to a scalar. See :class:`GreedyFed` for ``tolerance``.
    """
    size = orders.shape[1]
    nobody, everybody = jnp.zeros(size, bool), jnp.ones(size, bool)
    first, last = value(nobody), value(everybody)

    def along(order: Array) -> Array:
        def join(so_far: tuple[Array, Array], client: Array) -> tuple[tuple[Array, Array], Array]:
            members, before = so_far
            members = members.at[client].set(True)
            reached = jnp.abs(last - before) < tolerance
            after = lax.cond(reached, lambda: before, lambda: value(members))
            return (members, after), after - before

        _, added = lax.scan(join, (nobody, first), order)
        return jnp.zeros(size).at[order].set(added)

    worth = jnp.mean(lax.map(along, orders), axis=0)
    return jnp.where(jnp.abs(last - first) < tolerance, 0.0, worth)
