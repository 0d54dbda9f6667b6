"""Pisces' participant selection: clients of high loss whose updates are not stale.

Source: Jiang et al., "Pisces: efficient federated learning via guided asynchronous training", SoCC
2022, and its program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.base.struct import number, static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size, first_of, top_clients

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class PiscesState(NamedTuple):
    """State of Pisces."""

    utility: Float[Array, " K"]  # statistical utility of each client's last report
    lag: Float[Array, "K n"]  # staleness of its last n updates, the latest last
    reports: Int[Array, " K"]  # updates of it that the server averaged


class Pisces(PolicyConfig):
    """Exploit the clients of largest ``|B| sqrt(mean squared loss) / (lag + 1)^beta``.

    lag is the mean staleness of a client's last updates. In rounds it is 0, and the score is Oort's
    statistical utility. Of the m clients a binomial number is explored: drawn from those that have
    not reported yet.

    The rule is read from the program, in its branch ``statistical_only``, with which the authors
    made most figures. Not included: the outliers that it can leave out. The pace of Pisces' server
    is ``Asynchronous(pace=b)``.

    Attributes:
      penalty: beta, exponent of the lag.
      exploration: probability that a client is an explored one, in decision 1.
      exploration_decay: its factor a decision.
      exploration_min: its lower bound.
      memory: n, updates whose mean staleness is the lag.
    """

    name: ClassVar[str] = "pisces"
    summary: ClassVar[str] = "high loss and low staleness, with exploration"
    reads: ClassVar[tuple[str, ...]] = ("square_loss",)
    observes: ClassVar[str] = "squared loss, staleness"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Jiang et al. 2022"

    penalty: float = number(default=0.5, at_least=0)
    exploration: float = number(default=0.9, at_least=0, at_most=1)
    exploration_decay: float = number(default=0.98, above=0, at_most=1)
    exploration_min: float = number(default=0.3, at_least=0, at_most=1)
    memory: int = static(default=5, at_least=1)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected

        def init() -> PiscesState:
            return PiscesState(
                utility=jnp.zeros(num_clients),
                lag=jnp.zeros((num_clients, self.memory)),
                reports=jnp.zeros(num_clients, jnp.int32),
            )

        def select(key: Array, state: PiscesState, round: Array, available: Array) -> Selected:
            number_key, explore_key, tie_key = jax.random.split(key, 3)
            share = self.exploration * self.exploration_decay ** (round - 1).astype(jnp.float32)
            share = jnp.maximum(share, self.exploration_min)
            number = jnp.sum(jax.random.bernoulli(number_key, share, (m,)), dtype=jnp.int32)
            fresh = available & (state.reports == 0)
            at_random = top_clients(jnp.zeros(num_clients), fresh, num_clients, explore_key)
            # Explored clients first, then by score; other fresh ones fill up.
            rest = jnp.where(fresh, -1.0, self.scores(state))
            rank = jnp.where(fresh & first_of(at_random, number), jnp.inf, rest)
            clients = top_clients(rank, available, m, tie_key)
            return by_data_size(clients, available, context), no_info()

        def update(
            state: PiscesState, selection: Selection, observation: Observation
        ) -> PiscesState:
            clients, received = selection.clients, selection.active & observation.received
            utility = context.local_samples[clients] * jnp.sqrt(observation.square_loss)
            new = jnp.broadcast_to(observation.staleness, clients.shape).astype(state.lag.dtype)
            lag = jnp.column_stack([state.lag[clients][:, 1:], new])
            return PiscesState(
                utility=store_active(state.utility, clients, utility, received),
                lag=store_active(state.lag, clients, lag, received),
                reports=state.reports.at[clients].add(received.astype(jnp.int32)),
            )

        return Policy(init, select, update)

    def scores(self, state: PiscesState) -> Array:
        """Utility over lag of every client, float [K], >= 0; 0 of one whose loss is not finite."""
        known = jnp.clip(state.reports, 1, self.memory).astype(state.lag.dtype)
        lag = jnp.sum(state.lag, axis=1) / known
        score = state.utility / (lag + 1) ** self.penalty
        return jnp.where(jnp.isfinite(score), score, 0.0)
