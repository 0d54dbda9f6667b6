"""What a selection policy is.

A policy is three pure functions written for one run and never batched; its config builds them
within the trace, so every number in the config can be swept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.privacy import Mechanism
from pause_jax.reward import Reward
from pause_jax.search.problem import shuffled
from pause_jax.struct import Config


class Selection(NamedTuple):
    """The cohort of a round.

    Attributes:
      clients: int32 [m], distinct client numbers.
      weights: float [m], aggregation weights, equation (2). A weight of 0 marks an empty slot: its
        client does not take part (fewer than m were available).
    """

    clients: Array
    weights: Array


class Observation(NamedTuple):
    """What the chosen clients returned, in the order of ``Selection.clients``.

    Attributes:
      latency: float [m], seconds.
      loss: float [m], mean training loss; a policy that reads it learns more about the data than
        the mechanism protects.
    """

    latency: Array
    loss: Array


class Info(NamedTuple):
    """Diagnostics of a selection; NaN where a policy has no such thing. Never fed back."""

    energy: Array
    optimality_gap: Array
    acceptance_rate: Array


class Policy(NamedTuple):
    """A selection policy.

    Attributes:
      init: () -> state.
      select: (key, state, round, available [K]) -> (Selection, Info).
      update: (state, Selection, Observation) -> state; reads only what the chosen returned.
    """

    init: Callable[[], Any]
    select: Callable[[Array, Any, Array, Array], tuple[Selection, Info]]
    update: Callable[[Any, Selection, Observation], Any]


class Context(NamedTuple):
    """What a policy may know of the network when it is built.

    Attributes:
      num_clients: K.
      num_selected: m, size of this policy's cohort.
      data_size: float [K], samples of each client, |D_k|.
      share: float [K], quality-weighted share of the data; sums to one.
      reward: weights of the reward.
      privacy: the mechanism; a policy may read its schedule, not its releases.
      min_latency: tau_min, seconds.
      expected_speed: float [K], mu_k. For the genie only.
      expected_latency: float [K], E[tau_k], seconds. For "fastest in expectation" only.
    """

    num_clients: int
    num_selected: int
    data_size: Array
    share: Array
    reward: Reward
    privacy: Mechanism
    min_latency: Array
    expected_speed: Array
    expected_latency: Array


class PolicyConfig(Config):
    """Base of every policy's config.

    Attributes:
      observes: what it reads of the chosen clients after a round.
      assumes: what it takes as known beforehand.
      reference: where the rule comes from.
    """

    observes: ClassVar[str] = "nothing"
    assumes: ClassVar[str] = "nothing"
    reference: ClassVar[str] = ""

    def cohort_size(self, num_clients: int, num_selected: int) -> int:
        """Clients chosen a round."""
        return num_selected

    def build(self, context: Context) -> Policy:
        """The three functions, for one network."""
        raise NotImplementedError


def no_info() -> Info:
    """Diagnostics of a policy that has none."""
    nan = jnp.asarray(jnp.nan)
    return Info(nan, nan, nan)


def by_data_size(clients: Array, available: Array, context: Context) -> Selection:
    """A selection with FedAvg weights |D_k| / sum |D_j|, (2); slots of absent clients are empty."""
    size = jnp.where(available[clients], context.data_size[clients], 0.0)
    total = jnp.sum(size)
    return Selection(clients, size / jnp.where(total > 0, total, 1.0))


def top_clients(score: Array, available: Array, num_selected: int, key: Array) -> Array:
    """The m available clients of highest score, ties at random; absent ones only fill up."""
    order = shuffled(score.shape[0], available, key)
    ranked = order[jnp.argsort(-jnp.where(available, score, -jnp.inf)[order], stable=True)]
    return ranked[:num_selected]


def from_draws(draws: Array, drawn: Array, context: Context) -> Selection:
    """A selection from m draws with repetition, each of weight 1/m: repeats add up.

    Args:
      draws: int [m], clients.
      drawn: bool [m], False for a draw that found nobody.
      context: the network.

    Returns:
      Distinct clients; slots that repeats have freed are empty. Weights sum to one.
    """
    weight = jnp.zeros(context.num_clients).at[draws].add(drawn.astype(jnp.float32))
    weights, clients = jax.lax.top_k(weight, context.num_selected)
    return Selection(clients, weights / jnp.maximum(jnp.sum(weights), 1.0))


def stateless(select: Callable[[Array, Array], Selection]) -> Policy:
    """A policy that learns nothing, from ``(key, available) -> Selection``."""

    def full_select(
        key: Array, state: tuple[()], round: Array, available: Array
    ) -> tuple[Selection, Info]:
        return select(key, available), no_info()

    return Policy(lambda: (), full_select, lambda state, selection, observation: state)
