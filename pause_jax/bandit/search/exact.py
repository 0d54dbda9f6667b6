"""Exact search by a threshold sweep, under jit and vmap.

Up to ``SMALL`` clients all prefixes are compared side by side; for more clients it is about one
sort, then branch and bound over blocks of places.
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

# Up to so many clients all prefixes are compared side by side.
SMALL = 64
# Places of a block at the least; a block holds no fewer than m.
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
    bits: Array | tuple[None, ...] = (
        None,
    ) * 3  # to break ties by index, by weight, and of the best
    if key is not None:
        bits = jax.vmap(lambda key: jax.random.bits(key, index.shape))(jax.random.split(key, 3))
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


def _members(chosen: Array, num_selected: int) -> Array:
    """The numbers of those chosen, ascending, int32 [m]: each has so many before it."""
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
    """Return the sum of each cohort's weights, the heaviest first.

    The order makes the bits: the same weights give the same sum whoever holds them and whatever is
    batched beside this search. So each weight is brought to its place by a sum of one term, and
    the places are added one after the other. ``cohort`` has a row for each cohort, and ``place`` is
    1 to m for its members by descending weight.
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


# ---------------------------------------------------------------- branch and bound for large K
#
# With the clients at places 0, ..., K - 1 by descending index u, and W_j the sum of the m largest
# weights of places 0, ..., j, find the place j >= m - 1 of largest value u_j + W_j.


class Best(NamedTuple):
    """The best prefix so far: its value u_j + W_j, its total W_j, its last place j. Scalars."""

    value: Float[Array, ""]
    total: Float[Array, ""]
    place: Int[Array, ""]


class Blocks(NamedTuple):
    """The places after the first m, cut into B blocks of S places; the last is filled by -inf."""

    index: Float[Array, "B S"]  # type: ignore[assignment]  # shadows tuple.index
    weight: Float[Array, "B S"]
    top: Float[Array, "B m"]  # the m largest weights of all places before each block, descending
    total_after: Float[Array, " B"]  # W at the last place of each block


class Bounds(NamedTuple):
    """Upper bounds on the values that are not known yet; -inf where none can be best."""

    prefix: Float[Array, "B S"]  # on the value of the prefix that ends at each place
    block: Float[Array, " B"]  # the largest in each block


def best_prefix(index: Array, weight: Array, num_selected: int) -> Array:
    """Return the last place of the prefix that maximises its last index + its m largest weights.

    1. The first m places are the first prefix; it is valued. The others are cut into blocks, and
       one pass over the blocks keeps the m largest weights before each.
    2. Every place gets an upper bound on its value (:func:`first_bounds`).
    3. The place of the highest bound is valued, and the m largest weights of its prefix tighten
       the bounds of its block (:func:`value_highest_of`). This is repeated until no bound is left
       that reaches the best value.

    The sum of m sorted weights is a fixed tree of additions: rounding keeps its order, and equal
    weights give equal bits. The bounds carry the worst rounding error, so what is skipped is worse
    in floating point too.

    Indices descend; index and weight are -inf where there is no client. Of equal values the larger
    sum of weights wins, then the first place; with fewer than m clients it is m - 1.
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
    """Return bounds from the m largest weights before each block; -inf where none can be best.

    W_j is at most W before the block plus the gains of :func:`_total_bounds`, and at most W after
    the block, because W never falls.

    Two kinds of places need no value. Within a run of equal indices W never falls, so the last
    place of the run is as good as any. And a place whose index is no other's and whose weight is
    not among the m largest of its prefix has the W of the place before it, which has a larger
    index. (A weight below the m-th largest before the block is not among them.)
    """
    num_selected = blocks.top.shape[1]
    size = blocks.index.shape[1]
    drops = index[:-1] > index[1:]  # from a place to the next one
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
    """Value the place of highest bound in a block, and tighten the other bounds by what is learnt.

    With W_j known, the total is at most W_j before place j; after it, the gains count from the m
    largest weights at j instead of those before the block. The place itself is done: -inf. Returns
    the valued prefix and the new bounds of block b.
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
    """The places after the first m in blocks; ``top`` [m]: the weights of the first m, sorted."""
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
    """Values [n] in rows of ``size``, the last one filled up."""
    num_blocks = -(-values.shape[0] // size)
    padded = jnp.pad(values, (0, num_blocks * size - values.shape[0]), constant_values=fill)
    return padded.reshape(num_blocks, size)


def _enter(top: Array, weight: Array) -> Array:
    """The m largest of ``top`` [m] and ``weight`` [S], descending."""
    return lax.top_k(jnp.concatenate([top, weight]), top.shape[0])[0]


def _valued(index: Array, top: Array, place: Array) -> Best:
    """The prefix of this last index, these m largest weights [m] and this last place."""
    total = tree_sum(top)
    return Best(index + total, total, place)


def _total_bounds(top: Array, weight: Array) -> Array:
    """Bound the total after each of the places that follow from above, float [S].

    A weight w that enters the m largest, ``top``, replaces one of at least ``top[-1]``, because the
    least of the m never falls: the total grows by no more than max(w - top[-1], 0).

    That is so for exact sums. In floating point the totals before and after are trees of additions,
    each wrong by at most ceil(log2 m) roundings, half an eps each, of the sum of its absolute
    values. For the m that come out that is at most sum |top| for those that stay, and
    |w| <= |top[-1]| + gain for each of at most m that enter. The gains are a running sum of at most
    S roundings; a few roundings more are of the additions here.
    """
    num_selected, size = len(top), len(weight)
    gained = jnp.cumsum(jnp.maximum(weight - top[-1], 0.0))
    magnitude = jnp.sum(jnp.abs(top)) + num_selected * jnp.abs(top[-1]) + gained
    roundings = (num_selected.bit_length() + 3) * magnitude + (size + 3) * gained
    return tree_sum(top) + gained + jnp.finfo(weight.dtype).eps * roundings


def _better(best: Best, new: Best) -> Best:
    """The larger value, then the larger sum, then the earlier place."""
    wins = new.place < best.place
    for ours, theirs in ((new.total, best.total), (new.value, best.value)):
        wins = (ours > theirs) | ((ours == theirs) & wins)
    return Best(*(jnp.where(wins, ours, theirs) for ours, theirs in zip(new, best, strict=True)))
