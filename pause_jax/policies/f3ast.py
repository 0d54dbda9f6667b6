"""F3AST: the clients that have taken part too seldom for their data, weighed so that it evens out.

Source: Ribero, Vikalo and de Veciana, "Federated learning under intermittent client availability
and time-varying communication constraints", IEEE JSTSP 2023, and its program.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.base.struct import number
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import mask_of, top_clients


class F3ast(PolicyConfig):
    """The m available clients of largest p_k^2 / r_k^2, with weights in proportion to p_k / r_k.

    p_k is the share of the data, r_k the long-run rate of participation: r <- (1 - beta) r + beta
    x, with x_k = 1 for the chosen, r = p before round 1. The choice is a step along the gradient
    of -sum p_k^2 / r_k, the variance of the average; the weights are by the rates after it.

    Weights sum to one here, as everywhere. With the p_k / r_k themselves the long-run average is
    unbiased; scaled it is so too, except where rounds often lack clients.

    Attributes:
      forgetting: beta, weight of the last round in the rates.
    """

    name: ClassVar[str] = "f3ast"
    summary: ClassVar[str] = "seldom chosen for its data; weights even out availability"
    observes: ClassVar[str] = "who takes part"
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
