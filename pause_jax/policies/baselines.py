"""Non-adaptive baseline policies: random, fastest, all and round robin."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.base.struct import static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size, draw_clients, stateless, top_clients


class Random(PolicyConfig):
    """Policy that draws m random clients without replacement.

    Attributes:
      weighting: ``uniform``, or ``data`` for successive draws with probabilities proportional to
        the data sizes of the remaining clients.
    """

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "m random clients, uniform or weighted by data size"
    assumes: ClassVar[str] = "data sizes if weighting = data"
    reference: ClassVar[str] = "McMahan et al. 2017"

    weighting: str = static(default="uniform", choices=("uniform", "data"))

    def build(self, context: Context) -> Policy:
        def select(key: Array, available: Array) -> Selection:
            weight = context.data_size
            if self.weighting == "uniform":
                weight = jnp.ones_like(weight)
            clients = draw_clients(weight, available, context.num_selected, key)
            return by_data_size(clients, available, context)

        return stateless(select)


class Fastest(PolicyConfig):
    """Policy that selects the m available clients with the lowest expected latency."""

    name: ClassVar[str] = "fastest"
    summary: ClassVar[str] = "the m clients with the lowest expected latency"
    assumes: ClassVar[str] = "expected latencies"
    reference: ClassVar[str] = "Peleg et al. 2025, section V"

    def build(self, context: Context) -> Policy:
        def select(key: Array, available: Array) -> Selection:
            score = -context.expected_latency
            clients = top_clients(score, available, context.num_selected, key)
            return by_data_size(clients, available, context)

        return stateless(select)


class All(PolicyConfig):
    """Policy that selects every available client (FedAvg with full participation)."""

    name: ClassVar[str] = "all"
    summary: ClassVar[str] = "every client, every round"
    reference: ClassVar[str] = "McMahan et al. 2017"

    def cohort_size(self, num_clients: int, num_selected: int) -> int:
        return num_clients

    def build(self, context: Context) -> Policy:
        def select(key: Array, available: Array) -> Selection:
            return by_data_size(jnp.arange(context.num_clients), available, context)

        return stateless(select)


class RoundRobin(PolicyConfig):
    """Policy that selects the next m available clients in a fixed cyclic order.

    If this cyclic order follows client speed, as in the papers' networks, the clients in a cohort
    have similar speeds, which shortens rounds.

    Attributes:
      order: ``number`` for ascending client numbers, or ``shuffled`` for a fixed random order.
    """

    name: ClassVar[str] = "round_robin"
    summary: ClassVar[str] = "the next m available clients in cyclic order"
    reference: ClassVar[str] = "folklore"

    order: str = static(default="number", choices=("number", "shuffled"))

    def build(self, context: Context) -> Policy:
        num_clients = context.num_clients
        place = jnp.arange(num_clients, dtype=jnp.int32)
        if self.order == "shuffled":
            place = jnp.asarray(np.random.default_rng(0).permutation(num_clients), jnp.int32)

        def select(key: Array, cursor: Array, round: Array, available: Array) -> Selected:
            distance = (place - cursor) % num_clients
            clients = top_clients(-distance, available, context.num_selected, key)
            return by_data_size(clients, available, context), no_info()

        def update(cursor: Array, selection: Selection, observation: Observation) -> Array:
            distance = (place[selection.clients] - cursor) % num_clients
            furthest = jnp.max(jnp.where(selection.active, distance, -1))
            return (cursor + furthest + 1) % num_clients

        return Policy(lambda: jnp.asarray(0, jnp.int32), select, update)
