"""Unbiased sampling policies, whose expected cohort average equals the average over all data.

Source: Li et al. 2020 (MD sampling); Fraboni et al., "Clustered sampling", ICML 2021, Algorithm 1;
Ribero, Vikalo and de Veciana, "Federated learning under intermittent client availability and
time-varying communication constraints", IEEE JSTSP 2023, and the authors' code (F3AST).
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.base.struct import number
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import mask_of, stateless, top_clients


class MdSampling(PolicyConfig):
    """Multinomial sampling by data size, with m independent draws of weight 1/m each."""

    name: ClassVar[str] = "md_sampling"
    summary: ClassVar[str] = "m independent draws by data size, weight 1/m each"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Li et al. 2020"

    def build(self, context: Context) -> Policy:
        def select(key: Array, available: Array) -> Selection:
            rows = jnp.broadcast_to(context.data_size, (context.num_selected, context.num_clients))
            return draw_from_rows(key, rows, available, context)

        return stateless(select)


class ClusteredSize(PolicyConfig):
    """Clustered sampling based on sample size, with one draw from each of m distributions.

    If all clients are available, weights are unbiased, with at most the variance of MD sampling.
    """

    name: ClassVar[str] = "clustered_size"
    summary: ClassVar[str] = "one draw from each of m clusters formed by data size"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Fraboni et al. 2021, Alg. 1"

    def build(self, context: Context) -> Policy:
        rows = size_distributions(context.data_size, context.num_selected)

        def select(key: Array, available: Array) -> Selection:
            return draw_from_rows(key, rows, available, context)

        return stateless(select)


class F3ast(PolicyConfig):
    """Selection of the m clients with the largest ratio of data share to participation rate.

    p_k is client k's share of the data, and r_k its participation rate. After each round, r <- (1 -
    beta) r + beta x, where x_k is 1 if client k was chosen, else 0. Before round 1, r = p. The
    selection follows the gradient of -sum p_k^2 / r_k, the negative variance of the average.
    Aggregation weights are proportional to p_k / r_k with the updated rates. The long-run average
    is unbiased unless rounds often have fewer than m available clients.

    Attributes:
      forgetting: beta, weight of the newest round in the rates.
    """

    name: ClassVar[str] = "f3ast"
    summary: ClassVar[str] = (
        "clients chosen rarely relative to their data size, with weights corrected for availability"
    )
    observes: ClassVar[str] = "participation"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Ribero et al. 2023"

    forgetting: float = number(default=0.01, above=0, at_most=1)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        share = context.data_size / jnp.sum(context.data_size)

        def next_rate(rate: Array, clients: Array, active: Array) -> Array:
            chosen = mask_of(clients, active, num_clients).astype(rate.dtype)
            return rate + self.forgetting * (chosen - rate)

        def select(key: Array, rate: Array, round: Array, available: Array) -> Selected:
            clients = top_clients(share / rate, available, m, key)
            active = available[clients]
            later = next_rate(rate, clients, active)[clients]
            weight = jnp.where(active, share[clients] / later, 0.0)
            total = jnp.sum(weight)
            return Selection(clients, weight / jnp.where(total > 0, total, 1.0)), no_info()

        def update(rate: Array, selection: Selection, observation: Observation) -> Array:
            return next_rate(rate, selection.clients, selection.active)

        return Policy(lambda: share, select, update)


def size_distributions(data_size: Array, num_selected: int) -> Array:
    """Return the m distributions of Algorithm 1, float [m, K], in closed form.

    The algorithm distributes the clients, largest first, over m bins of equal capacity. With the
    cumulative shares P_i of the sorted clients, r_{k,i} = m max(0, min(P_i, k/m) - max(P_{i-1},
    (k-1)/m)). Each row sums to one. Column i sums to m p_i, even if m p_i exceeds 1.
    """
    order = jnp.argsort(-data_size, stable=True)
    end = jnp.cumsum(data_size[order]) / jnp.sum(data_size)
    start = jnp.concatenate([jnp.zeros(1), end[:-1]])
    edge = jnp.arange(num_selected + 1) / num_selected
    last = jnp.minimum(end[None, :], edge[1:, None])
    first = jnp.maximum(start[None, :], edge[:-1, None])
    rows = num_selected * jnp.maximum(last - first, 0.0)
    return jnp.zeros_like(rows).at[:, order].set(rows)


def draw_from_rows(key: Array, rows: Array, available: Array, context: Context) -> Selection:
    """Draw one available client from each row of the unnormalised probabilities ``rows`` [m, K].

    All draws have the same weight. A client drawn twice trains once with twice the weight, leaving
    one slot empty. Weights sum to one, or to zero if no client is available.
    """
    rows = jnp.where(available[None, :], rows, 0.0)
    draws = jax.random.categorical(key, jnp.log(rows), axis=1)
    found = jnp.any(rows > 0, axis=1).astype(jnp.float32)
    weight = jnp.zeros(context.num_clients).at[draws].add(found)
    weights, clients = jax.lax.top_k(weight, context.num_selected)
    return Selection(clients, weights / jnp.maximum(jnp.sum(weights), 1.0))
