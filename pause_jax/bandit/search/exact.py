"""Exact search by a threshold sweep: about one sort for large K, under jit and vmap."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit.protocol import Info
from pause_jax.bandit.search.prefix import best_prefix
from pause_jax.bandit.search.problem import (
    Problem,
    Search,
    check_problem,
    optimal_info,
    ordered,
    set_energy,
)

# Up to so many clients all prefixes are compared side by side.
SMALL = 64


def exact(
    index: Array,
    weight: Array,
    num_selected: int,
    *,
    available: Array | None = None,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """Maximise ``min index + sum weight`` over sets of ``num_selected`` clients, exactly.

    Sort the clients by index, descending. The best set whose lowest index stands at place j is
    among the first j clients, and there it is the m largest weights; no candidate is over-valued,
    because every member of the first j has an index of at least index_(j). So the best prefix gives
    the optimum of (14), which the PAUSE paper holds to need exhaustive search.

    Untried clients (index +inf) are compared lexicographically: first by the lowest index, then by
    the sum of weights.

    Args:
      index: float [K], may hold +inf and -inf, no NaN.
      weight: float [K], finite.
      num_selected: m, 1 <= m <= K (static).
      available: bool [K]; all by default. If fewer than m clients are available, all of them are
        returned and unavailable ones fill up the rest: mask with ``available[clients]``.
      key: breaks ties at random; without it they are broken by client number.

    Returns:
      ``(clients, energy)``: int32 [m] distinct and ascending, and the energy of the available ones.

    Raises:
      ValueError: if the shapes disagree or m is out of range.
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
    """All prefixes side by side: K^3 work, but neither a loop nor a sort.

    Prefix j is client j and the available clients that stand before it by index. A client's place
    by weight within a prefix is the number of its members that are heavier, and the client itself:
    a product of two [K, K] masks counts it for all prefixes at once.
    """
    bits = (None,) * 3 if key is None else _three_words(key, index.shape)
    stands_before = _precedence(index, available, bits[0])  # [i, j]: i before j by index
    prefix = ~stands_before & available[:, None] & available[None, :]  # [j, i]: i is in prefix j
    itself = jnp.eye(index.shape[0], dtype=bool)
    heavier = _precedence(weight, available, bits[1]) | itself  # [h, i]: h is not lighter than i
    place = prefix.astype(jnp.float32) @ heavier.astype(jnp.float32)  # [j, i]: of i by weight, in j
    cohort = prefix & (place <= num_selected)  # [j, i]: i is among the m heaviest of prefix j
    total = _total_of_heaviest(weight, cohort, place, num_selected)
    value = jnp.where(jnp.isinf(index), index, index + total)
    feasible = available & (jnp.sum(prefix, axis=1) >= num_selected)
    best = _lexicographic_argmax(value, total, feasible, bits[2])
    # Fewer than m are available: all of those, and others to fill up.
    first = jnp.sum(stands_before, axis=0) < num_selected
    chosen = jnp.where(jnp.any(feasible), cohort[best], first)
    return _members(chosen, num_selected)


def _three_words(key: Array, shape: tuple[int, ...]) -> Array:
    """To break ties by index, by weight, and of the best: uint32 [3, K], in one draw."""
    return jax.vmap(lambda key: jax.random.bits(key, shape))(jax.random.split(key, 3))


def _members(chosen: Array, num_selected: int) -> Array:
    """The numbers of those chosen, ascending, int32 [m]: each has so many before it."""
    number = jnp.arange(chosen.shape[0])
    place = jnp.sum(chosen[None, :] & (number[None, :] < number[:, None]), axis=1)
    holds = chosen[:, None] & (place[:, None] == jnp.arange(num_selected)[None, :])  # [i, r]
    return jnp.sum(jnp.where(holds, number[:, None], 0), axis=0).astype(jnp.int32)


def _total_of_heaviest(weight: Array, cohort: Array, place: Array, num_selected: int) -> Array:
    """Sum of each cohort's weights, the heaviest first, float [K].

    The order makes the bits: the same weights give the same sum whoever holds them and whatever is
    batched beside this search. So each weight is brought to its place by a sum of one term, and
    the places are added one after the other.

    Args:
      weight: float [K].
      cohort: bool [K, K], a row for each cohort.
      place: float [K, K], 1 to m for a cohort's members by descending weight.
      num_selected: m.
    """
    places = 1 + jnp.arange(num_selected, dtype=place.dtype)[None, None, :]
    holds = cohort[:, :, None] & (place[:, :, None] == places)  # [j, i, r]
    heaviest = jnp.sum(jnp.where(holds, weight[None, :, None], 0.0), axis=1)  # [j, r]
    total = heaviest[:, 0]
    for r in range(1, num_selected):
        total = total + heaviest[:, r]
    return total


def _precedence(value: Array, available: Array, bits: Array | None) -> Array:
    """[i, j]: whether i stands before j in ``ordered(value, available, key)``, bool [K, K].

    The bits are uint32 [K]; by number without them.
    """
    number = jnp.arange(value.shape[0])
    bits = number if bits is None else bits

    def pair(x: Array) -> tuple[Array, Array]:
        return x[:, None], x[None, :]

    before = number[:, None] < number[None, :]
    value = jnp.where(available, value, 0.0)
    # The last key first: each comparison decides, unless it is equal, over those before.
    for ours, theirs in (pair(bits), pair(-value), pair(~available)):
        before = (ours < theirs) | ((ours == theirs) & before)
    return before


def _by_sorting(
    index: Array, weight: Array, num_selected: int, available: Array, key: Array | None
) -> Array:
    """A sort by index, then branch and bound for the best prefix; its m heaviest are the answer."""
    place = jnp.arange(index.shape[0])
    order = ordered(index, available, None if key is None else jax.random.split(key)[0])
    taken = place < jnp.sum(available)  # the others stand at the end
    # -inf is kept for the places of unavailable clients.
    lowest = 0.5 * jnp.finfo(index.dtype).min
    sorted_index = jnp.where(taken, jnp.maximum(index[order], lowest), -jnp.inf)
    sorted_weight = jnp.where(taken, weight[order], -jnp.inf)
    best = best_prefix(sorted_index, sorted_weight, num_selected)
    within = jnp.where(place <= best, sorted_weight, -jnp.inf)
    # Of fewer than m available ones all are inside, and the first others fill up.
    _, places = lax.top_k(within, num_selected)
    return jnp.sort(order[places]).astype(jnp.int32)


def _lexicographic_argmax(
    first: Array, second: Array, feasible: Array, bits: Array | None
) -> Array:
    """Place of the largest (first, second) among the feasible; ties by bits, uint32 [K], if any."""
    best_first = jnp.max(jnp.where(feasible, first, -jnp.inf))
    tied = feasible & (first == best_first)
    best_second = jnp.max(jnp.where(tied, second, -jnp.inf))
    tied &= second == best_second
    bits = jnp.zeros(first.shape, jnp.int32) if bits is None else (bits >> 9).astype(jnp.int32)
    return jnp.argmax(jnp.where(tied, bits, -1))


class Exact(Search):
    """Search by the exact threshold sweep (see :func:`exact`)."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "exact optimum by a threshold sweep, any K"

    def __call__(
        self, key: Array, problem: Problem, num_selected: int, available: Array
    ) -> tuple[Array, Info]:
        clients, energy = exact(
            problem.index, problem.weight, num_selected, available=available, key=key
        )
        return clients, optimal_info(energy)
