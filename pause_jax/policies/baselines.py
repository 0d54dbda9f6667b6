"""Policies that learn nothing: random, fastest in expectation, all."""

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
    """m clients at random without replacement.

    Attributes:
      weighting: ``uniform``, or ``data`` to draw with probabilities proportional to data sizes
        (one after the other, each among the clients that are left).
    """

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "uniformly at random, or weighted by data size"
    assumes: ClassVar[str] = "data sizes if weighted by data"
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
    """The m available clients of least expected latency, every round."""

    name: ClassVar[str] = "fastest"
    summary: ClassVar[str] = "the m fastest in expectation, always the same"
    assumes: ClassVar[str] = "expected latencies"
    reference: ClassVar[str] = "Peleg et al. 2025, section V"

    def build(self, context: Context) -> Policy:
        def select(key: Array, available: Array) -> Selection:
            score = -context.expected_latency
            clients = top_clients(score, available, context.num_selected, key)
            return by_data_size(clients, available, context)

        return stateless(select)


class All(PolicyConfig):
    """Every available client, every round (FedAvg with full participation)."""

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
    """The next m available clients in a fixed cyclic order.

    Neighbours form cohorts. Where clients are numbered by speed, as in the papers' fleets, each
    cohort is of one speed, and rounds are shorter than those of random cohorts.

    Attributes:
      order: ``number``, or ``shuffled``: an order that has nothing to do with the numbers, the
        same in every run.
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
