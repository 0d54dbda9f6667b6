"""Exhaustive search that scores all C(K, m) sets in chunks, for small networks."""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit.protocol import Info
from pause_jax.bandit.search.problem import (
    Problem,
    Search,
    check_problem,
    optimal_info,
    set_energy,
    shuffled,
)
from pause_jax.base.struct import ConfigError, Sizes
from pause_jax.rng.summation import tree_sum

# Maximum number of candidate cohorts, C(K, m). Problems with more candidates are rejected.
MAX_SETS = 10_000_000
# Number of sets scored in parallel (limits memory use).
CHUNK = 4096


def exhaustive(
    index: Array,
    weight: Array,
    num_selected: int,
    *,
    available: Array | None = None,
    key: Array | None = None,
    chunk_size: int = CHUNK,
) -> tuple[Array, Array]:
    """Maximise ``min index + sum weight`` by scoring every set, as in the authors' code.

    Sets are generated from their ranks (combinatorial number system). Only ``chunk_size`` sets are
    in memory at once. For the remaining arguments, the result and other errors, see
    :func:`pause_jax.bandit.search.exact`.

    Raises:
      ConfigError: if C(K, m) exceeds ``MAX_SETS``. The message states C(K, m).
    """
    index, weight = jnp.asarray(index), jnp.asarray(weight)
    check_problem(index, weight, num_selected)
    (num_clients,) = index.shape
    num_sets = count_sets(num_clients, num_selected)
    available = jnp.ones(num_clients, bool) if available is None else jnp.asarray(available)
    order = shuffled(num_clients, available, key)
    u, w, usable = index[order], weight[order], available[order]
    binomials = _binomials(num_clients, num_selected, num_sets)

    def visit(chunk: Array, best: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        best_value, best_total, _ = best
        ranks = jnp.minimum(chunk * chunk_size + jnp.arange(chunk_size), num_sets - 1)
        ranks = ranks.astype(jnp.int32)
        value, total = _score(_unrank(ranks, binomials), u, w, usable)
        top_value = jnp.nanmax(jnp.where(jnp.isnan(value), -jnp.inf, value))
        top_total = jnp.max(jnp.where(value == top_value, total, -jnp.inf))
        here = ranks[jnp.argmax((value == top_value) & (total == top_total))]
        better = (top_value > best_value) | ((top_value == best_value) & (top_total > best_total))
        found = (top_value, top_total, here)
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best)

    lowest = jnp.asarray(-jnp.inf, weight.dtype)
    start = (lowest, lowest, jnp.asarray(0, jnp.int32))
    *_, best_rank = lax.fori_loop(0, -(-num_sets // chunk_size), visit, start)
    enough = jnp.sum(available) >= num_selected
    places = jnp.where(enough, _unrank(best_rank[None], binomials)[0], jnp.arange(num_selected))
    clients = jnp.sort(order[places]).astype(jnp.int32)
    return clients, set_energy(index, weight, clients, available)


def _binomials(num_clients: int, num_selected: int, most: int) -> Array:
    """Return min(C(c, i + 1), most) for each [i, c], int32 [m, K]. ``most`` exceeds every rank."""
    sizes, clients = range(1, num_selected + 1), range(num_clients)
    return jnp.asarray([[min(math.comb(c, i), most) for c in clients] for i in sizes], jnp.int32)


def _unrank(rank: Array, binomials: Array) -> Array:
    """Return the sets, int [n, m], with ranks [n] in the combinatorial number system."""
    members = []
    for i in reversed(range(len(binomials))):
        member = jnp.searchsorted(binomials[i], rank, side="right") - 1
        rank = rank - binomials[i][member]
        members.append(member)
    return jnp.stack(members, axis=-1)


def _score(members: Array, index: Array, weight: Array, usable: Array) -> tuple[Array, Array]:
    """Compute the energy and weight sum of each set in ``members`` [n, m] (NaN if infeasible)."""
    total = tree_sum(weight[members])
    lowest = jnp.min(index[members], axis=-1)
    value = jnp.where(jnp.isinf(lowest), lowest, lowest + total)
    feasible = jnp.all(usable[members], axis=-1)
    # Comparisons with NaN are False, so an infeasible set never wins.
    return jnp.where(feasible, value, jnp.nan), jnp.where(feasible, total, jnp.nan)


def count_sets(num_clients: int, num_selected: int) -> int:
    """Return C(K, m), or raise :class:`ConfigError` if it exceeds ``MAX_SETS``."""
    num_sets = math.comb(num_clients, num_selected)
    if num_sets > MAX_SETS:
        raise ConfigError(
            f"exhaustive search would score {num_sets:,} sets per round (num_clients = "
            f"{num_clients}, num_selected = {num_selected}): must be <= {MAX_SETS:,}. Use search "
            "= exact, which finds the same optimum for any number of clients."
        )
    return num_sets


class Exhaustive(Search):
    """Exhaustive search that scores up to ``MAX_SETS`` sets (see :func:`exhaustive`)."""

    name: ClassVar[str] = "exhaustive"
    summary: ClassVar[str] = "exact optimum by scoring all C(K, m) sets, for small networks only"

    def check(self, path: str, sizes: Sizes) -> None:
        count_sets(sizes.num_clients, sizes.cohort_size)

    def __call__(
        self, key: Array, problem: Problem, num_selected: int, available: Array
    ) -> tuple[Array, Info]:
        clients, energy = exhaustive(
            problem.index, problem.weight, num_selected, available=available, key=key
        )
        return clients, optimal_info(energy)
