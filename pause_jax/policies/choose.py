"""Functions for ranking, sampling and weighting clients, shared by the policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Selection, no_info
from pause_jax.bandit.search.problem import ordered
from pause_jax.base.struct import ConfigError, Sizes
from pause_jax.policies.base import Answer, Context, Policy, Query


def by_data_size(
    clients: Int[Array, " m"], available: Bool[Array, " K"], context: Context
) -> Selection:
    """Return ``clients`` as a selection with FedAvg weights ``|D_k| / sum |D_j|`` (PAUSE, Eq. 2).

    The sum is over the cohort's available clients. Slots of unavailable clients have weight 0.
    """
    size = jnp.where(available[clients], context.data_size[clients], 0.0)
    total = jnp.sum(size)
    return Selection(clients, size / jnp.where(total > 0, total, 1.0))


def top_clients(
    score: Float[Array, " K"], available: Bool[Array, " K"], num_selected: int, key: Array
) -> Int[Array, " m"]:
    """Return the m available clients with the highest scores, in descending order of score.

    Ties are broken at random. Unavailable clients fill any remaining slots. Scores must not be NaN.
    """
    return ordered(score, available, key)[:num_selected]


def draw_clients(
    weight: Float[Array, " K"], among: Bool[Array, " K"], count: int, key: Array
) -> Int[Array, " count"]:
    """Draw ``count`` clients without replacement, with probabilities proportional to ``weight``.

    Clients are returned in the order of the draws. Clients with weight 0 are drawn last, and
    clients outside ``among`` fill any remaining slots.
    """
    # Gumbel top-k trick: sorting by log w plus Gumbel noise yields a sample without replacement.
    score_key, tie_key = jax.random.split(key)
    score = jnp.log(weight) + jax.random.gumbel(score_key, weight.shape)
    return top_clients(score, among, count, tie_key)


def inclusion_probabilities(
    weight: Float[Array, " K"], among: Bool[Array, " K"], total: Array | float
) -> Float[Array, " K"]:
    """Return inclusion probabilities min(1, c weight) that sum to ``total`` (0 outside ``among``).

    Probabilities are allocated as in E3CS. All weights in ``among`` must be positive. If ``total``
    exceeds the number of clients in ``among``, each of these clients has probability 1.
    """
    weight = jnp.where(among, weight, 0.0)
    largest = jnp.sort(weight, descending=True)
    rest = jnp.cumsum(largest[::-1])[::-1]  # sum of each weight and all smaller weights
    # If the j heaviest clients have probability 1, c = (total - j) / (sum of the other weights).
    factor = (total - jnp.arange(len(weight), dtype=weight.dtype)) / jnp.where(rest > 0, rest, 1.0)
    fits = factor * largest <= 1
    chosen = factor[jnp.argmax(fits)]
    probability = jnp.where(jnp.any(fits & (largest > 0)), jnp.minimum(chosen * weight, 1.0), 1.0)
    return jnp.where(among, probability, 0.0)


def dep_round(probability: Float[Array, " K"], num_selected: int, key: Array) -> Int[Array, " m"]:
    """Draw a cohort with the given inclusion probabilities, which must sum to an integer n <= m.

    The n drawn clients come first, in random order. Other clients fill any remaining slots. Each
    step of DepRound (Gandhi et al. 2006) moves probability between two clients, in a random
    direction, until one of them has probability 0 or 1. A step preserves each client's expected
    probability. A random tournament with log2 K levels avoids the rounding errors of long sums.
    """
    num_clients = len(probability)
    order_key, trade_key = jax.random.split(key)
    order = jnp.argsort(jax.random.bits(order_key, (num_clients,)))
    size = 1 << (num_clients - 1).bit_length()
    entrants = jnp.pad(probability[order], (0, size - num_clients))
    drawn = _settled(entrants, jax.random.uniform(trade_key, (size,)))[:num_clients]
    return order[jax.lax.top_k(drawn.astype(jnp.int32), num_selected)[1]]


def _settled(probability: Array, chance: Array) -> Array:
    """Convert uniform variates [2^i] to a mask [2^i] with the given inclusion probabilities."""
    if len(probability) == 1:
        return probability > 0.5  # an integer up to rounding
    half = len(probability) // 2
    left, right = probability[:half], probability[half:]
    both = left + right
    over = both > 1
    # One client of each pair gets probability 1 if the pair's total exceeds 1, and 0 otherwise. The
    # other client gets the remainder. If the total is almost 1, both branches draw the same client.
    left_goes_on = jnp.where(
        over, (1 - chance[:half]) * (2 - both) < 1 - left, chance[:half] * both < left
    )
    later = _settled(jnp.where(over, both - 1, both), chance[half:])
    return jnp.concatenate(
        [jnp.where(left_goes_on, later, over), jnp.where(left_goes_on, over, later)]
    )


def equal_weights(clients: Array, active: Array) -> Selection:
    """Return ``clients``, int [m], as a selection with equal weights in the ``active`` slots."""
    weights = active.astype(jnp.float32)
    return Selection(clients, weights / jnp.maximum(jnp.sum(weights), 1.0))


def mask_of(clients: Array, chosen: Array, num_clients: int) -> Array:
    """Return the mask, bool [K], of the distinct ``clients`` [n] for which ``chosen`` is true."""
    return jnp.zeros(num_clients, bool).at[clients].set(chosen)


def first_of(order: Array, count: Array) -> Array:
    """Return the mask, bool [K], of the first ``count`` clients of a permutation, int [K]."""
    place = jnp.arange(order.shape[0], dtype=count.dtype)
    return mask_of(order, place < count, order.shape[0])


def ask_everyone(
    key: Array, state: Any, round: Array, available: Bool[Array, " K"]
) -> tuple[Array, Array]:
    """Return all clients and the mask of available clients (for use as ``Query.ask``)."""
    return jnp.arange(available.shape[0]), available


def resource_request(
    ask: Callable[[Array, Any, Array, Array], tuple[Array, Array]],
    receive: Callable[[Any, Array, Array, Answer], Any],
    seconds: Array | float,
) -> Query:
    """Build a query for latency features. Each client takes ``seconds`` seconds to answer it."""
    return Query(ask, receive, "features", None, lambda latency: jnp.full_like(latency, seconds))


def num_candidates(candidates: int | None, context: Context) -> int:
    """Return ``candidates``, or the default min(2 m, K) if it is None."""
    if candidates is None:
        return min(2 * context.num_selected, context.num_clients)
    return candidates


def check_candidates(path: str, candidates: int | None, sizes: Sizes) -> None:
    """Raise ConfigError unless ``candidates`` (of the policy at ``path``) is None or in [m, K]."""
    m, num_clients = sizes.num_selected, sizes.num_clients
    if candidates is not None and not m <= candidates <= num_clients:
        raise ConfigError(
            f"{path}.candidates = {candidates}: must be >= num_selected = {m} and <= num_clients "
            f"= {num_clients}. Remove this setting to use the default."
        )


def stateless(select: Callable[[Array, Array], Selection]) -> Policy:
    """Build a stateless policy from a function ``(key, available) -> Selection``."""
    return Policy(
        init=lambda: (),
        select=lambda key, state, round, available: (select(key, available), no_info()),
        update=lambda state, selection, observation: state,
    )


def inverse_and_log_det(
    matrix: Float[Array, "*batch n n"],
) -> tuple[Float[Array, "*batch n n"], Float[Array, "*batch"]]:
    """Return the inverses and log-determinants of small positive definite matrices.

    LAPACK is avoided because it can deadlock in jaxlib 0.10 while waiting for its own thread pool.
    """
    log_det = jnp.zeros(matrix.shape[:-2])
    for i in range(matrix.shape[-1]):  # Gauss-Jordan elimination, in place and without pivoting
        pivot, column = matrix[..., i, i], matrix[..., :, i]
        row = matrix[..., i, :] / pivot[..., None]
        matrix = (matrix - column[..., :, None] * row[..., None, :]).at[..., i, :].set(row)
        matrix = matrix.at[..., :, i].set(-column / pivot[..., None]).at[..., i, i].set(1 / pivot)
        log_det += jnp.log(pivot)
    return matrix, log_det
