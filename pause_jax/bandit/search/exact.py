"""Exact search using a threshold sweep, for use under jit and vmap.

A prefix contains the first j clients in descending order of index. For up to ``SMALL`` clients,
all prefixes are compared in parallel. With more clients, a sort and two scans find the best prefix.
"""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from pause_jax.bandit.protocol import Info
from pause_jax.bandit.search.problem import (
    Problem,
    Search,
    check_problem,
    optimal_info,
    ordered,
    set_energy,
)
from pause_jax.rng.summation import tree_sum

# Maximum number of clients for which all prefixes are compared in parallel.
SMALL = 64
# Minimum number of clients per block.
BLOCK = 32


def exact(
    index: Array,
    weight: Array,
    num_selected: int,
    *,
    available: Array | None = None,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """Find the set of ``num_selected`` clients that maximises ``min index + sum weight``.

    Sort the clients by descending index, index_(1) >= ... >= index_(K). Prefix j contains the first
    j clients. If the last member of a set is the j-th client, the set's energy is at most index_(j)
    plus the sum of the m largest weights in prefix j. The m heaviest clients of prefix j attain at
    least this bound, because their indices are at least index_(j). The best prefix therefore yields
    the optimum in Eq. (14) of PAUSE. (The paper assumes that this requires exhaustive search.) If
    the optimum is infinite, return the optimal set with the largest weight sum.

    Args:
      index: float [K], may contain +inf (untried clients) and -inf, but not NaN.
      weight: float [K], finite.
      num_selected: m, 1 <= m <= K (static).
      available: bool [K], or None if all clients are available. If fewer than m are available,
        the set includes unavailable clients, for which ``available[clients]`` is False.
      key: random key for breaking ties, or None to break ties by client number.

    Returns:
      ``(clients, energy)``. The clients, int32 [m], are distinct and ascending. The energy
      includes only the available clients.

    Raises:
      ValueError: if the shapes disagree, m is out of range, or an untraced value is NaN.
    """
    index, weight = jnp.asarray(index), jnp.asarray(weight)
    check_problem(index, weight, num_selected)
    num_clients = index.shape[0]
    available = jnp.ones(num_clients, bool) if available is None else jnp.asarray(available)
    find = _by_counting if num_clients <= SMALL else _by_sorting
    clients = find(index, weight, num_selected, available, key)
    return clients, set_energy(index, weight, clients, available)


def _by_counting(
    index: Array, weight: Array, num_selected: int, available: Array, key: Array | None
) -> Array:
    """Compare all prefixes in parallel, with O(K^3) work but no sort, and return the best set.

    Prefix j contains client j and the available clients before client j in descending order of
    index. The matrix product of two [K, K] masks ranks the clients of every prefix by weight.
    """
    # Random words that break ties in index, in weight, and between prefixes.
    bits: Array | tuple[None, ...] = (None, None, None)
    if key is not None:
        bits = jax.vmap(lambda key: jax.random.bits(key, index.shape))(jax.random.split(key, 3))
    stands_before = _precedence(index, available, bits[0])  # [i, j]: i precedes j in index order
    prefix = ~stands_before & available[:, None] & available[None, :]  # [j, i]: i is in prefix j
    itself = jnp.eye(index.shape[0], dtype=bool)
    heavier = _precedence(weight, available, bits[1]) | itself  # [h, i]: h is not lighter than i
    place = prefix.astype(jnp.float32) @ heavier.astype(jnp.float32)  # [j, i]: rank of i in j
    cohort = prefix & (place <= num_selected)  # [j, i]: i is among the m heaviest of prefix j
    total = _total_of_heaviest(weight, cohort, place, num_selected)
    value = jnp.where(jnp.isinf(index), index, index + total)
    feasible = available & (jnp.sum(prefix, axis=1) >= num_selected)
    best = _lexicographic_argmax(value, total, feasible, bits[2])
    # If fewer than m clients are available, take them all and add unavailable clients.
    first = jnp.sum(stands_before, axis=0) < num_selected
    chosen = jnp.where(jnp.any(feasible), cohort[best], first)
    return _members(chosen, num_selected)


def _members(chosen: Array, num_selected: int) -> Array:
    """Return the chosen clients' numbers in ascending order, int32 [m]."""
    number = jnp.arange(chosen.shape[0])
    place = jnp.sum(chosen[None, :] & (number[None, :] < number[:, None]), axis=1)
    holds = chosen[:, None] & (place[:, None] == jnp.arange(num_selected)[None, :])  # [i, r]
    return jnp.sum(jnp.where(holds, number[:, None], 0), axis=0).astype(jnp.int32)


def _total_of_heaviest(
    weight: Float[Array, " K"],
    cohort: Bool[Array, "K K"],
    place: Float[Array, "K K"],
    num_selected: int,
) -> Float[Array, " K"]:
    """Sum each cohort's weights in descending order, so the same weights always give the same sum.

    Row j of ``cohort`` is the mask of cohort j. Row j of ``place`` ranks the members of cohort j by
    weight from 1 (heaviest) to m. Each sorted weight is a masked sum with at most one nonzero term.
    """
    places = 1 + jnp.arange(num_selected, dtype=place.dtype)[None, None, :]
    holds = cohort[:, :, None] & (place[:, :, None] == places)  # [j, i, r]
    heaviest = jnp.sum(jnp.where(holds, weight[None, :, None], 0.0), axis=1)  # [j, r]
    total = heaviest[:, 0]
    for r in range(1, num_selected):
        total = total + heaviest[:, r]
    return total


def _precedence(value: Array, available: Array, bits: Array | None) -> Array:
    """Return whether client i precedes j in ``ordered(value, available, key)``, bool [K, K].

    Ties are broken by ``bits``, uint32 [K], or by client number if ``bits`` is None.
    """
    number = jnp.arange(value.shape[0])
    bits = number if bits is None else bits

    def pair(x: Array) -> tuple[Array, Array]:
        return x[:, None], x[None, :]

    before = number[:, None] < number[None, :]
    value = jnp.where(available, value, 0.0)
    # Start with the last sort key. Each comparison overrides earlier results unless it is a tie.
    for ours, theirs in (pair(bits), pair(-value), pair(~available)):
        before = (ours < theirs) | ((ours == theirs) & before)
    return before


def _by_sorting(
    index: Array, weight: Array, num_selected: int, available: Array, key: Array | None
) -> Array:
    """Sort by index, find the best prefix, and return its m heaviest members."""
    place = jnp.arange(index.shape[0])
    order = ordered(index, available, None if key is None else jax.random.split(key)[0])
    taken = place < jnp.sum(available)  # unavailable clients come last
    # -inf is reserved for unavailable clients.
    lowest = 0.5 * jnp.finfo(index.dtype).min
    sorted_index = jnp.where(taken, jnp.maximum(index[order], lowest), -jnp.inf)
    sorted_weight = jnp.where(taken, weight[order], -jnp.inf)
    best = best_prefix(sorted_index, sorted_weight, num_selected)
    within = jnp.where(place <= best, sorted_weight, -jnp.inf)
    # If fewer than m clients are available, unavailable clients fill the remaining slots.
    _, places = lax.top_k(within, num_selected)
    return jnp.sort(order[places]).astype(jnp.int32)


def _lexicographic_argmax(
    first: Array, second: Array, feasible: Array, bits: Array | None
) -> Array:
    """Return the feasible position with the lexicographically largest (first, second, bits)."""
    best_first = jnp.max(jnp.where(feasible, first, -jnp.inf))
    tied = feasible & (first == best_first)
    best_second = jnp.max(jnp.where(tied, second, -jnp.inf))
    tied &= second == best_second
    bits = jnp.zeros(first.shape, jnp.int32) if bits is None else (bits >> 9).astype(jnp.int32)
    return jnp.argmax(jnp.where(tied, bits, -1))


class Exact(Search):
    """Exact search using a threshold sweep (see :func:`exact`)."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "exact optimum by threshold sweep, for any K"

    def __call__(
        self, key: Array, problem: Problem, num_selected: int, available: Array
    ) -> tuple[Array, Info]:
        clients, energy = exact(
            problem.index, problem.weight, num_selected, available=available, key=key
        )
        return clients, optimal_info(energy)


def best_prefix(index: Array, weight: Array, num_selected: int) -> Array:
    """Return the last position of the best prefix, or m - 1 if fewer than m clients are available.

    The value of a prefix is its lowest index plus the sum of its m largest weights. Ties are broken
    in favour of the larger weight sum, then the shorter prefix. ``index`` must be descending. Both
    arrays are -inf for unavailable clients.

    The weights after the first m are split into blocks. A first scan carries the m largest weights
    from block to block. A second scan inserts the weights one by one, for all blocks in parallel.
    The m sorted weights are summed in a fixed order, so the same weights always give the same sum.
    """
    last = num_selected - 1
    top = lax.top_k(weight[:num_selected], num_selected)[0]
    rest = index.shape[0] - num_selected
    if not rest:
        return jnp.int32(last)
    size = max(num_selected, BLOCK, math.isqrt(rest))
    padded = jnp.pad(weight[num_selected:], (0, -rest % size), constant_values=-jnp.inf)

    def pass_block(top: Array, weight: Array) -> tuple[Array, Array]:
        return lax.top_k(jnp.concatenate([top, weight]), num_selected)[0], top

    def enter(top: Array, weight: Array) -> tuple[Array, Array]:
        """Insert ``weight[b]`` into each block's sorted ``top[b]``, and drop the smallest entry."""
        above = jnp.pad(top[:, :-1], ((0, 0), (1, 0)), constant_values=jnp.inf)
        top = jnp.maximum(top, jnp.minimum(above, weight[:, None]))
        return top, tree_sum(top)

    blocks = padded.reshape(-1, size)
    _, before = lax.scan(pass_block, top, blocks)
    _, after = lax.scan(enter, before, blocks.T)
    total = jnp.append(tree_sum(top), after.T.reshape(-1)[:rest])
    first = _lexicographic_argmax(index[last:] + total, total, jnp.full(rest + 1, True), None)
    return (last + first).astype(jnp.int32)
