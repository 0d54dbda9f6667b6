"""Policies that learn nothing: random, fastest in expectation, all."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.policies.base import (
    Context,
    Policy,
    PolicyConfig,
    Selection,
    by_data_size,
    stateless,
)
from pause_jax.struct import static


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
            # Gumbel top-m: the m largest of log p + Gumbel are a draw without replacement.
            score = jax.random.gumbel(key, (context.num_clients,))
            if self.weighting == "data":
                score += jnp.log(context.data_size)
            return by_data_size(_top(score, available, context), available, context)

        return stateless(select)


class Fastest(PolicyConfig):
    """The m available clients of least expected latency, every round."""

    name: ClassVar[str] = "fastest"
    summary: ClassVar[str] = "the m fastest in expectation, always the same"
    assumes: ClassVar[str] = "expected latencies"
    reference: ClassVar[str] = "Peleg et al. 2025, section V"

    def build(self, context: Context) -> Policy:
        def select(key: Array, available: Array) -> Selection:
            clients = _top(-context.expected_latency, available, context)
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


def _top(score: Array, available: Array, context: Context) -> Array:
    """The m available clients of highest score; unavailable ones only fill up the slots."""
    score = jnp.where(available, score, -jnp.inf)
    return jax.lax.top_k(score, context.num_selected)[1]
