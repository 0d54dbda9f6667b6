"""The best prefix of clients sorted by index: branch and bound over blocks of places."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

# Places of a block at the least; a block holds no fewer than m.
BLOCK = 32


class Best(NamedTuple):
    """The best prefix so far: its value, its m largest weights added up, its last place."""

    value: Array
    total: Array
    place: Array


class Front(NamedTuple):
    """What is still open: ``bound`` [blocks, places] on each prefix, ``highest`` of each block."""

    bound: Array
    highest: Array


def best_prefix(index: Array, weight: Array, num_selected: int) -> Array:
    """The last place of the prefix that maximises ``its last index + its m largest weights``.

    Only the last place of a run of equal indices can be best, and a place that stands alone only if
    its own weight is among the m largest of its prefix. The places after the first m are cut into
    blocks, and one pass keeps the m largest weights before each block. Inside a block the sum of
    the m largest grows at each place by no more than what the weight there exceeds the least of
    those m by. So every prefix has an upper bound; the one with the highest bound is valued, its m
    largest weights tighten the bounds of its block, and that is repeated until no bound is left
    that reaches the best value.

    The sum of m sorted weights is a fixed tree of additions: rounding keeps its order, and equal
    weights give equal bits. The bounds carry the worst rounding error, so what is skipped is worse
    in floating point too.

    Args:
      index: float [K], descending, may hold +inf; -inf from the first place on that is no client's.
      weight: float [K], finite; -inf where there is no client.
      num_selected: m, 1 <= m <= K (static).

    Returns:
      int32, a place >= m - 1. Of equal values the larger sum of weights wins, then the first place.
      m - 1 if there are fewer than m clients.
    """
    num_places = index.shape[0]
    first, _ = lax.top_k(weight[:num_selected], num_selected)
    total = tree_sum(first)
    best = Best(index[num_selected - 1] + total, total, jnp.int32(num_selected - 1))
    if num_places == num_selected:
        return best.place

    size = max(num_selected, BLOCK)
    num_blocks = -(-(num_places - num_selected) // size)

    def blocks(values: Array, fill: float | bool) -> Array:
        room = num_selected + num_blocks * size - num_places
        padded = jnp.pad(values[num_selected:], (0, room), constant_values=fill)
        return padded.reshape(num_blocks, size)

    falls = index[:-1] > index[1:]
    alone = blocks(jnp.append(True, falls), True)
    last = blocks(jnp.append(falls, index[-1] > -jnp.inf), False)
    index, weight = blocks(index, -jnp.inf), blocks(weight, -jnp.inf)

    def enter(top: Array, weight: Array) -> tuple[Array, Array]:
        return lax.top_k(jnp.concatenate([top, weight]), num_selected)[0], top

    end, before = lax.scan(enter, first, weight)
    after = tree_sum(jnp.concatenate([before[1:], end[None]]))
    most = jnp.minimum(jax.vmap(_most)(before, weight), after[:, None])
    is_open = last & (~alone | (weight >= before[:, -1:]))
    bound = jnp.where(is_open, index + most, -jnp.inf)

    def some_left(state: tuple[Best, Front]) -> Array:
        best, front = state
        highest = jnp.max(front.highest)
        return (highest > -jnp.inf) & (highest >= best.value)

    def value_one(state: tuple[Best, Front]) -> tuple[Best, Front]:
        best, front = state
        b = jnp.argmax(front.highest)
        bound, here = front.bound[b], jnp.arange(size)
        j = jnp.argmax(bound)
        top, _ = enter(before[b], jnp.where(here <= j, weight[b], -jnp.inf))
        total = tree_sum(top)
        place = (num_selected + b * size + j).astype(jnp.int32)
        new = Best(index[b, j] + total, total, place)
        most = jnp.where(here < j, total, _most(top, jnp.where(here > j, weight[b], -jnp.inf)))
        bound = jnp.where(here == j, -jnp.inf, jnp.minimum(bound, index[b] + most))
        front = Front(front.bound.at[b].set(bound), front.highest.at[b].set(jnp.max(bound)))
        return _better(best, new), front

    best, _ = lax.while_loop(some_left, value_one, (best, Front(bound, jnp.max(bound, axis=1))))
    return best.place


def tree_sum(values: Array) -> Array:
    """Sum over the last axis as a balanced tree: error at most ceil(log2 m) roundings of each term.

    Additions round monotonically, so terms that are larger one by one never have a smaller sum.
    """
    while (size := values.shape[-1]) > 1:
        half = size // 2
        pairs = values[..., :half] + values[..., half : 2 * half]
        values = jnp.concatenate([pairs, values[..., 2 * half :]], axis=-1)
    return values[..., 0]


def _most(top: Array, weight: Array) -> Array:
    """At most this is the ``tree_sum`` of the m largest of ``top`` and the first weights, [places].

    ``top`` is [m], descending. A weight that enters replaces one of at least ``top[-1]``.
    """
    num_selected, size = len(top), len(weight)
    gained = jnp.cumsum(jnp.maximum(weight - top[-1], 0.0))
    # Sum of the absolute values of any m that can come out; they and top are added as trees.
    magnitude = jnp.sum(jnp.abs(top)) + num_selected * jnp.abs(top[-1]) + gained
    roundings = (num_selected.bit_length() + 3) * magnitude + (size + 3) * gained
    return tree_sum(top) + gained + jnp.finfo(weight.dtype).eps * roundings


def _better(best: Best, new: Best) -> Best:
    """The larger value, then the larger sum, then the earlier place."""
    wins = new.place < best.place
    for ours, theirs in ((new.total, best.total), (new.value, best.value)):
        wins = (ours > theirs) | ((ours == theirs) & wins)
    return Best(*(jnp.where(wins, ours, theirs) for ours, theirs in zip(new, best, strict=True)))
