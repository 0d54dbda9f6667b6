"""Ingredients of policies: how clients are ranked, drawn and weighed."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit import Info, Selection, no_info
from pause_jax.policies.base import Context, Policy
from pause_jax.search.problem import ordered
from pause_jax.struct import ConfigError, Sizes


def by_data_size(clients: Array, available: Array, context: Context) -> Selection:
    """A selection with FedAvg weights |D_k| / sum |D_j|, (2); slots of absent clients are empty."""
    size = jnp.where(available[clients], context.data_size[clients], 0.0)
    total = jnp.sum(size)
    return Selection(clients, size / jnp.where(total > 0, total, 1.0))


def top_clients(score: Array, available: Array, num_selected: int, key: Array) -> Array:
    """The m available clients of highest score, ties at random; absent ones only fill up."""
    return ordered(score, available, key)[:num_selected]


def draw_clients(weight: Array, among: Array, count: int, key: Array) -> Array:
    """``count`` clients without replacement, each draw in proportion to weight among those left.

    Args:
      weight: float [K], >= 0; clients of weight 0 come after all others.
      among: bool [K], who can be drawn; the others only fill up.
      count: how many (static).
      key: of this draw.

    Returns:
      int32 [count] distinct clients, in the order of the draws.
    """
    # Gumbel top-k: the largest log w + Gumbel are draws without replacement.
    score_key, tie_key = jax.random.split(key)
    score = jnp.log(weight) + jax.random.gumbel(score_key, weight.shape)
    return top_clients(score, among, count, tie_key)


def equal_weights(clients: Array, active: Array) -> Selection:
    """A selection whose active slots all weigh the same; the others are empty."""
    weights = active / jnp.maximum(jnp.sum(active), 1)
    return Selection(clients, weights.astype(jnp.float32))


def num_candidates(candidates: int | None, context: Context) -> int:
    """How many clients are candidates: as configured, or 2 m and at most K."""
    if candidates is None:
        return min(2 * context.num_selected, context.num_clients)
    return candidates


def check_candidates(path: str, candidates: int | None, sizes: Sizes) -> None:
    """Raise ConfigError unless m <= candidates <= K."""
    m, num_clients = sizes.num_selected, sizes.num_clients
    if candidates is not None and not m <= candidates <= num_clients:
        raise ConfigError(
            f"{path}.candidates = {candidates}: must be >= num_selected = {m} and <= "
            f"num_clients = {num_clients}. Leave it out for twice num_selected."
        )


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
