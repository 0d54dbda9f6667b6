"""GreedyFed: the clients that lowered the server's validation loss most.

Source: Singhal, Pandey and Popovski, "Greedy Shapley client selection for communication-efficient
federated learning", IEEE Networking Letters 2024 (arXiv 2312.09108), and its program; the values by
GTG-Shapley (Liu et al., ACM TIST 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.base.struct import ConfigError, number, static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.baselines import Random
from pause_jax.policies.choose import by_data_size, top_clients

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

# What a model counts that is not finite.
_WORST = 1e6


class GreedyState(NamedTuple):
    """State of GreedyFed."""

    round: Int[Array, ""]  # rounds so far
    value: Float[Array, " K"]  # average Shapley value of each client
    times: Int[Array, " K"]  # rounds that it is the average of


class GreedyFed(PolicyConfig):
    """The m clients of largest average Shapley value, after each was received once.

    The value of a coalition of a round's cohort is minus the server's validation loss of the model
    that averages its updates alone, as received, clipped and noised: nothing more is released.
    Shapley values are means over permutations of the cohort, in which each client leads as often
    as any other; the order of the others is drawn anew each round, alike in every run. Clients that
    were never received come first, at random. It needs ``learning.validation`` samples. Without
    learning there is nothing to value, and it is ``random``.

    The program stops early by a test of convergence; here the number of permutations is fixed.

    Attributes:
      sweeps: permutations that each client of the cohort leads.
      tolerance: a coalition this close to the value of all is worth as much; further clients of the
        permutation add nothing. The whole round is worth nothing if it changes the loss by less.
      memory: share of the old average that is kept at a new value; None for the plain mean.
    """

    name: ClassVar[str] = "greedyfed"
    summary: ClassVar[str] = "largest Shapley values on the server's validation samples"
    reads: ClassVar[tuple[str, ...]] = ("server_loss",)
    observes: ClassVar[str] = "noised updates"
    assumes: ClassVar[str] = "data sizes, validation samples at the server"
    reference: ClassVar[str] = "Singhal et al. 2024"
    alone: ClassVar[bool] = True

    sweeps: int = static(default=2, at_least=1)
    tolerance: float = number(default=1e-4, at_least=0)
    memory: float | None = number(default=None, at_least=0, at_most=1, optional=True)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        if context.update_size == 0:
            return Random().build(context)
        if not context.validates:
            raise ConfigError(
                f"policy = {self.name}: the server has no validation samples. Set "
                "learning.validation, say to 100: so many of the test set are then not scored."
            )

        def init() -> GreedyState:
            nothing = jnp.zeros(num_clients, jnp.int32)
            return GreedyState(jnp.zeros((), jnp.int32), jnp.zeros(num_clients), nothing)

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
            kept = 1 - 1 / count if self.memory is None else self.memory
            new = jnp.where(count == 1, worth, kept * old + (1 - kept) * worth)
            return GreedyState(
                round=state.round + 1,
                value=store_active(state.value, clients, new, received),
                times=store_active(state.times, clients, count, received),
            )

        return Policy(init, select, update)


def coalition_value(
    loss: Callable[[Array], Array], weights: Float[Array, " m"], received: Bool[Array, " m"]
) -> Callable[[Array], Array]:
    """Return the value of a coalition, bool [m] -> scalar: minus the loss of its weighted average.

    ``loss`` takes aggregation weights [m] to the validation loss. Clients whose update was not
    received add nothing.
    """

    def value(members: Array) -> Array:
        weight = jnp.where(members & received, weights, 0.0)
        total = jnp.sum(weight)
        average_loss = loss(weight / jnp.where(total > 0, total, 1.0))
        return -jnp.nan_to_num(average_loss, nan=_WORST, posinf=_WORST)

    return value


def permutations(key: Array, size: int, sweeps: int) -> Array:
    """Permutations in which each of ``size`` leads ``sweeps`` times, int [sweeps * size, size]."""
    lead = jnp.tile(jnp.arange(size), sweeps)
    score = jax.random.uniform(key, (sweeps * size, size))
    return jnp.argsort(score.at[jnp.arange(sweeps * size), lead].set(-1.0), axis=1)


def shapley(
    value: Callable[[Array], Array], orders: Int[Array, "R m"], tolerance: Array | float
) -> Float[Array, " m"]:
    """Return the mean value that each client adds to those before it in R permutations.

    ``value`` is that of a coalition, bool [m]; see :class:`GreedyFed` for ``tolerance``.
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
