"""Exact search using a threshold sweep that works under jit and vmap.

For up to ``SMALL`` clients, all prefixes are compared in parallel. For more clients, one sort,
which dominates the cost, is followed by branch and bound over blocks of places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

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

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

# Maximum number of clients for comparing all prefixes in parallel.
SMALL = 64
# Minimum number of places per block, raised to m for larger cohorts.
BLOCK = 32


def exact(
    index: Array,
    weight: Array,
    num_selected: int,
    *,
    available: Array | None = None,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """Maximise ``min index + sum weight`` over sets of ``num_selected`` clients, exactly.

    Sort the clients by descending index. A set whose lowest index is at place j lies within the
    first j clients, so its energy is at most index_(j) plus their m largest weights. The m clients
    with these weights attain at least this value, because their indices are at least index_(j). The
    best prefix therefore yields the optimum of PAUSE (14), for which the paper assumes that
    exhaustive search is necessary.

    Sets with an infinite lowest index (+inf if untried) are compared using their sum of weights.

    Args:
      index: float [K], may contain +inf and -inf, but no NaN.
      weight: float [K], finite.
      num_selected: m, 1 <= m <= K (static).
      available: bool [K]; None if all clients are available. If fewer than m are available, the
        result contains all of them and unavailable clients, which ``available[clients]`` masks out.
      key: random key for breaking ties; None to break ties by client number.

    Returns:
      ``(clients, energy)``: int32 [m], distinct and ascending, and the energy of the available
      clients among them.

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
    """Return the best set by comparing all prefixes in parallel, with O(K^3) work but no sort.

    Prefix j consists of client j and the available clients before it by index. A client's place by
    weight in a prefix is one plus the number of heavier members. A product of two [K, K] masks
    counts these members for all prefixes at once.
    """
    # Words that break ties by index, by weight, and between prefixes.
    bits: Array | tuple[None, ...] = (None, None, None)
    if key is not None:
        bits = jax.vmap(lambda key: jax.random.bits(key, index.shape))(jax.random.split(key, 3))
    stands_before = _precedence(index, available, bits[0])  # [i, j]: i before j by index
    prefix = ~stands_before & available[:, None] & available[None, :]  # [j, i]: i is in prefix j
    itself = jnp.eye(index.shape[0], dtype=bool)
    heavier = _precedence(weight, available, bits[1]) | itself  # [h, i]: h is not lighter than i
    place = prefix.astype(jnp.float32) @ heavier.astype(jnp.float32)  # [j, i]: place of i in j
    cohort = prefix & (place <= num_selected)  # [j, i]: i is among the m heaviest of prefix j
    total = _total_of_heaviest(weight, cohort, place, num_selected)
    value = jnp.where(jnp.isinf(index), index, index + total)
    feasible = available & (jnp.sum(prefix, axis=1) >= num_selected)
    best = _lexicographic_argmax(value, total, feasible, bits[2])
    # If fewer than m clients are available, take all of them and fill the rest with others.
    first = jnp.sum(stands_before, axis=0) < num_selected
    chosen = jnp.where(jnp.any(feasible), cohort[best], first)
    return _members(chosen, num_selected)


def _members(chosen: Array, num_selected: int) -> Array:
    """Return the numbers of the chosen clients, ascending, int32 [m]."""
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
    """Sum each cohort's weights in descending order, so sums of equal weights are bitwise equal.

    Row j of ``cohort`` is the mask of cohort j, and row j of ``place`` numbers its members from 1
    to m by descending weight. A sum with one nonzero term moves each weight to its place.
    """
    places = 1 + jnp.arange(num_selected, dtype=place.dtype)[None, None, :]
    holds = cohort[:, :, None] & (place[:, :, None] == places)  # [j, i, r]
    heaviest = jnp.sum(jnp.where(holds, weight[None, :, None], 0.0), axis=1)  # [j, r]
    total = heaviest[:, 0]
    for r in range(1, num_selected):
        total = total + heaviest[:, r]
    return total


def _precedence(value: Array, available: Array, bits: Array | None) -> Array:
    """Return whether i precedes j in ``ordered(value, available, key)``, bool [K, K] at [i, j].

    Ties are broken by ``bits``, uint32 [K], or by client number if it is None.
    """
    number = jnp.arange(value.shape[0])
    bits = number if bits is None else bits

    def pair(x: Array) -> tuple[Array, Array]:
        return x[:, None], x[None, :]

    before = number[:, None] < number[None, :]
    value = jnp.where(available, value, 0.0)
    # From the last sort key to the first, each comparison overrides earlier ones unless equal.
    for ours, theirs in (pair(bits), pair(-value), pair(~available)):
        before = (ours < theirs) | ((ours == theirs) & before)
    return before


def _by_sorting(
    index: Array, weight: Array, num_selected: int, available: Array, key: Array | None
) -> Array:
    """Sort by index, find the best prefix with branch and bound, and return its m heaviest."""
    place = jnp.arange(index.shape[0])
    order = ordered(index, available, None if key is None else jax.random.split(key)[0])
    taken = place < jnp.sum(available)  # unavailable clients come last
    # -inf is reserved for the places of unavailable clients.
    lowest = 0.5 * jnp.finfo(index.dtype).min
    sorted_index = jnp.where(taken, jnp.maximum(index[order], lowest), -jnp.inf)
    sorted_weight = jnp.where(taken, weight[order], -jnp.inf)
    best = best_prefix(sorted_index, sorted_weight, num_selected)
    within = jnp.where(place <= best, sorted_weight, -jnp.inf)
    # If fewer than m clients are available, the first of the other clients fill the rest.
    _, places = lax.top_k(within, num_selected)
    return jnp.sort(order[places]).astype(jnp.int32)


def _lexicographic_argmax(
    first: Array, second: Array, feasible: Array, bits: Array | None
) -> Array:
    """Return the feasible place with the largest (first, second), breaking ties by ``bits``."""
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


# ---------------------------------------------------------------- branch and bound for large K
#
# The clients are at places 0, ..., K - 1 by descending index u. W_j is the sum of the m largest
# weights at places 0, ..., j. Find the place j >= m - 1 with the largest value u_j + W_j.


class Best(NamedTuple):
    """Best prefix so far: value u_j + W_j, total W_j and last place j, all scalars."""

    value: Float[Array, ""]
    total: Float[Array, ""]
    place: Int[Array, ""]


class Blocks(NamedTuple):
    """Places after the first m, split into B blocks of S places and padded with -inf."""

    index: Float[Array, "B S"]  # type: ignore[assignment]  # shadows tuple.index
    weight: Float[Array, "B S"]
    top: Float[Array, "B m"]  # the m largest weights of all places before each block, descending
    total_after: Float[Array, " B"]  # W at the last place of each block


class Bounds(NamedTuple):
    """Upper bounds on values not computed yet; -inf at places that cannot be best."""

    prefix: Float[Array, "B S"]  # bound on the value of the prefix that ends at each place
    block: Float[Array, " B"]  # largest bound in each block


def best_prefix(index: Array, weight: Array, num_selected: int) -> Array:
    """Return the last place of the prefix that maximises its last index + its m largest weights.

    Evaluate the first m places, and bound the value of every other place (:func:`first_bounds`).
    While a bound reaches the best value, evaluate the place with the highest bound, and tighten the
    bounds of its block (:func:`value_highest_of`).

    The sum of m sorted weights is a fixed tree of additions, so sums of equal weights are bitwise
    equal. The bounds include the rounding error: a skipped place is worse in floating point, too.

    ``index`` must be descending. Both arrays are -inf at places without a client. Ties go to the
    larger sum of weights, then to the first place. With fewer than m clients, the result is m - 1.
    """
    top = lax.top_k(weight[:num_selected], num_selected)[0]
    best = _valued(index[num_selected - 1], top, jnp.int32(num_selected - 1))
    if index.shape[0] == num_selected:
        return best.place

    blocks = _cut(index, weight, top)

    def some_bound_reaches(state: tuple[Best, Bounds]) -> Array:
        best, bounds = state
        highest = jnp.max(bounds.block)
        return (highest > -jnp.inf) & (highest >= best.value)

    def value_highest(state: tuple[Best, Bounds]) -> tuple[Best, Bounds]:
        best, bounds = state
        b = jnp.argmax(bounds.block)
        found, tightened = value_highest_of(blocks, b, bounds.prefix[b])
        bounds = Bounds(
            prefix=bounds.prefix.at[b].set(tightened),
            block=bounds.block.at[b].set(jnp.max(tightened)),
        )
        return _better(best, found), bounds

    bounds = first_bounds(blocks, index)
    best, _ = lax.while_loop(some_bound_reaches, value_highest, (best, bounds))
    return best.place


def first_bounds(blocks: Blocks, index: Float[Array, " K"]) -> Bounds:
    """Compute bounds from the m largest weights before each block; -inf for skipped places.

    W_j is at most W before the block plus the gains in :func:`_total_bounds`, and at most W after
    the block, because W never decreases.

    Two kinds of places can be skipped. Within a run of equal indices, W never decreases, so only
    the last place of the run matters. A place with a unique index and a weight that is not among
    the m largest of its prefix has the same W as the place before it, which has a larger index. (A
    weight below the m-th largest before the block is not among the m largest.)
    """
    num_selected = blocks.top.shape[1]
    size = blocks.index.shape[1]
    drops = index[:-1] > index[1:]  # from each place to the next
    starts_run = _blocks_of(jnp.append(True, drops)[num_selected:], size, True)
    ends_run = _blocks_of(jnp.append(drops, index[-1] > -jnp.inf)[num_selected:], size, False)
    enters = blocks.weight >= blocks.top[:, -1:]
    can_be_best = ends_run & (~starts_run | enters)

    total = jax.vmap(_total_bounds)(blocks.top, blocks.weight)
    total = jnp.minimum(total, blocks.total_after[:, None])
    prefix = jnp.where(can_be_best, blocks.index + total, -jnp.inf)
    return Bounds(prefix, jnp.max(prefix, axis=1))


def value_highest_of(
    blocks: Blocks, b: Array, bound: Float[Array, " S"]
) -> tuple[Best, Float[Array, " S"]]:
    """Evaluate the place j with the highest bound in block b, and tighten the other bounds of b.

    Totals before place j are at most W_j. For later places, the gains are added to the m largest
    weights up to j instead of those before the block. The bound of place j becomes -inf. Return the
    evaluated prefix and the new bounds of block b, [S].
    """
    num_selected, size = blocks.top.shape[1], blocks.index.shape[1]
    index, weight = blocks.index[b], blocks.weight[b]
    here, j = jnp.arange(size), jnp.argmax(bound)
    top = _enter(blocks.top[b], jnp.where(here <= j, weight, -jnp.inf))
    found = _valued(index[j], top, (num_selected + b * size + j).astype(jnp.int32))
    later = _total_bounds(top, jnp.where(here > j, weight, -jnp.inf))
    total = jnp.where(here < j, found.total, later)
    return found, jnp.where(here == j, -jnp.inf, jnp.minimum(bound, index + total))


def _cut(index: Array, weight: Array, top: Array) -> Blocks:
    """Split the places after the first m, whose sorted weights are ``top`` [m], into blocks."""
    num_selected = top.shape[0]
    size = max(num_selected, BLOCK)
    index = _blocks_of(index[num_selected:], size, -jnp.inf)
    weight = _blocks_of(weight[num_selected:], size, -jnp.inf)

    def pass_block(top: Array, weight: Array) -> tuple[Array, Array]:
        return _enter(top, weight), top

    end, before = lax.scan(pass_block, top, weight)
    after = jnp.concatenate([before[1:], end[None]])
    return Blocks(index, weight, before, tree_sum(after))


def _blocks_of(values: Array, size: int, fill: float | bool) -> Array:
    """Reshape values [n] to rows of ``size``, padding the last row with ``fill``."""
    num_blocks = -(-values.shape[0] // size)
    padded = jnp.pad(values, (0, num_blocks * size - values.shape[0]), constant_values=fill)
    return padded.reshape(num_blocks, size)


def _enter(top: Array, weight: Array) -> Array:
    """Return the m largest entries of ``top`` [m] and ``weight`` [S] combined, descending."""
    return lax.top_k(jnp.concatenate([top, weight]), top.shape[0])[0]


def _valued(index: Array, top: Array, place: Array) -> Best:
    """Evaluate the prefix with a last index, m largest weights ``top`` [m] and a last place."""
    total = tree_sum(top)
    return Best(index + total, total, place)


def _total_bounds(top: Array, weight: Array) -> Array:
    """Compute an upper bound on the total after each of the following places, float [S].

    A weight w that enters the m largest, ``top``, replaces a weight of at least ``top[-1]``, so the
    total grows by at most max(w - top[-1], 0). In floating point, the error of each tree of
    additions is at most ceil(log2 m) eps / 2 times the sum of absolute values, which is at most
    ``sum |top|`` plus ``|top[-1]| + gain`` for each of m weights that enter. The gains are a
    running sum with at most S roundings, and this function adds a few more.
    """
    num_selected, size = len(top), len(weight)
    gained = jnp.cumsum(jnp.maximum(weight - top[-1], 0.0))
    magnitude = jnp.sum(jnp.abs(top)) + num_selected * jnp.abs(top[-1]) + gained
    roundings = (num_selected.bit_length() + 3) * magnitude + (size + 3) * gained
    return tree_sum(top) + gained + jnp.finfo(weight.dtype).eps * roundings


def _better(best: Best, new: Best) -> Best:
    """Return the prefix with the larger value, then the larger total, then the earlier place."""
    wins = new.place < best.place
    for ours, theirs in ((new.total, best.total), (new.value, best.value)):
        wins = (ours > theirs) | ((ours == theirs) & wins)
    return Best(*(jnp.where(wins, ours, theirs) for ours, theirs in zip(new, best, strict=True)))
