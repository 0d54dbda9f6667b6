"""Ingredients of policies: how clients are ranked, drawn and weighed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Selection, no_info
from pause_jax.bandit.search.problem import ordered
from pause_jax.base.struct import ConfigError, Sizes
from pause_jax.policies.base import Answer, Context, Policy, Query, Selected

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def by_data_size(
    clients: Int[Array, " m"], available: Bool[Array, " K"], context: Context
) -> Selection:
    """Return a selection with FedAvg weights ``|D_k| / sum |D_j|``, (2).

    Slots of absent clients are empty. Weights sum to one, or to zero if nobody is available.
    """
    size = jnp.where(available[clients], context.data_size[clients], 0.0)
    total = jnp.sum(size)
    return Selection(clients, size / jnp.where(total > 0, total, 1.0))


def top_clients(
    score: Float[Array, " K"], available: Bool[Array, " K"], num_selected: int, key: Array
) -> Int[Array, " m"]:
    """Return the m available clients of highest score, by descending score, ties at random.

    Absent clients only fill up. A score must not be NaN.
    """
    return ordered(score, available, key)[:num_selected]


def draw_clients(
    weight: Float[Array, " K"], among: Bool[Array, " K"], count: int, key: Array
) -> Int[Array, " count"]:
    """Draw ``count`` clients without replacement, in proportion to weight among those left.

    Clients come in the order of the draws; those of weight 0 come after all others, and those that
    are not ``among`` the ones to draw from only fill up.
    """
    # Gumbel top-k: the largest log w + Gumbel are draws without replacement.
    score_key, tie_key = jax.random.split(key)
    score = jnp.log(weight) + jax.random.gumbel(score_key, weight.shape)
    return top_clients(score, among, count, tie_key)


def inclusion_probabilities(
    weight: Float[Array, " K"], among: Bool[Array, " K"], total: Array | float
) -> Float[Array, " K"]:
    """Return probabilities min(1, c weight) whose sum is ``total``; 0 outside ``among``.

    The clients that reach 1 are fixed, and the rest is shared by the others in proportion to their
    weights > 0, until none exceeds 1 (E3CS's allocation). If ``total`` is more than the number of
    these clients, all have 1.
    """
    weight = jnp.where(among, weight, 0.0)
    largest = jnp.sort(weight, descending=True)
    rest = jnp.cumsum(largest[::-1])[::-1]  # sums from the smallest up, of each weight and below
    # If the first j clients are fixed at 1, the factor is (total - j) / (sum of the others).
    factor = (total - jnp.arange(len(weight), dtype=weight.dtype)) / jnp.where(rest > 0, rest, 1.0)
    fits = factor * largest <= 1
    chosen = factor[jnp.argmax(fits)]
    probability = jnp.where(jnp.any(fits & (largest > 0)), jnp.minimum(chosen * weight, 1.0), 1.0)
    return jnp.where(among, probability, 0.0)


def dep_round(probability: Float[Array, " K"], num_selected: int, key: Array) -> Int[Array, " m"]:
    """Draw a cohort of fixed size that has each client with exactly its own probability.

    Probabilities are at most 1 and sum to a whole number n <= m. The n drawn clients come first, in
    random order, then others that only fill up.

    DepRound (Gandhi et al. 2006): two clients trade probability until one has 0 or 1 and is
    settled, so that neither's mean nor the sum changes. The pairs are those of a tournament in a
    random order: log2 K levels without a loop over clients or a long sum, whose rounding would
    show in the probabilities (as it does in systematic sampling).
    """
    num_clients = len(probability)
    order_key, trade_key = jax.random.split(key)
    order = jnp.argsort(jax.random.bits(order_key, (num_clients,)))
    size = 1 << (num_clients - 1).bit_length()
    entrants = jnp.pad(probability[order], (0, size - num_clients))
    drawn = _settled(entrants, jax.random.uniform(trade_key, (size,)))[:num_clients]
    return order[jax.lax.top_k(drawn.astype(jnp.int32), num_selected)[1]]


def _settled(probability: Array, chance: Array) -> Array:
    """Who is drawn, bool [n], from probabilities [n] and uniform numbers [n]; n is a power of 2."""
    if len(probability) == 1:
        return probability > 0.5  # a whole number up to rounding
    half = len(probability) // 2
    left, right = probability[:half], probability[half:]
    both = left + right
    over = both > 1
    # One of the two is settled, at 1 if both exceed 1 and else at 0; the other has the rest. Where
    # they are 1 together, rounding says which of the two happens, and both choose the same client.
    left_goes_on = jnp.where(
        over, (1 - chance[:half]) * (2 - both) < 1 - left, chance[:half] * both < left
    )
    later = _settled(jnp.where(over, both - 1, both), chance[half:])
    return jnp.concatenate(
        [jnp.where(left_goes_on, later, over), jnp.where(left_goes_on, over, later)]
    )


def equal_weights(clients: Array, active: Array) -> Selection:
    """A selection of int [m] clients whose active slots, bool [m], weigh the same; others: 0."""
    weights = active.astype(jnp.float32)
    return Selection(clients, weights / jnp.maximum(jnp.sum(weights), 1.0))


def mask_of(clients: Array, chosen: Array, num_clients: int) -> Array:
    """Which clients are chosen, bool [K], from int [n] distinct clients and bool [n]."""
    return jnp.zeros(num_clients, bool).at[clients].set(chosen)


def first_of(order: Array, count: Array) -> Array:
    """Which clients are the first ``count`` of an order of all clients: int [K] -> bool [K]."""
    place = jnp.arange(order.shape[0], dtype=count.dtype)
    return mask_of(order, place < count, order.shape[0])


def ask_everyone(
    key: Array, state: Any, round: Array, available: Bool[Array, " K"]
) -> tuple[Array, Array]:
    """Ask all available clients."""
    return jnp.arange(available.shape[0]), available


def resource_request(
    ask: Callable[[Array, Any, Array, Array], tuple[Array, Array]],
    receive: Callable[[Any, Array, Array, Answer], Any],
    seconds: Array | float,
) -> Query:
    """A query for latency features that takes every client the same ``seconds``."""
    return Query(ask, receive, "features", None, lambda latency: jnp.full_like(latency, seconds))


def num_candidates(candidates: int | None, context: Context) -> int:
    """How many clients are candidates: as configured, or 2 m and at most K."""
    if candidates is None:
        return min(2 * context.num_selected, context.num_clients)
    return candidates


def check_candidates(path: str, candidates: int | None, sizes: Sizes) -> None:
    """Raise ConfigError unless m <= candidates <= K, of the policy at ``path``."""
    m, num_clients = sizes.num_selected, sizes.num_clients
    if candidates is not None and not m <= candidates <= num_clients:
        raise ConfigError(
            f"{path}.candidates = {candidates}: must be >= num_selected = {m} and <= "
            f"num_clients = {num_clients}. Leave it out for twice num_selected."
        )


def stateless(select: Callable[[Array, Array], Selection]) -> Policy:
    """A policy that learns nothing, from ``(key, available) -> Selection``."""

    def full_select(key: Array, state: tuple[()], round: Array, available: Array) -> Selected:
        return select(key, available), no_info()

    return Policy(lambda: (), full_select, lambda state, selection, observation: state)
