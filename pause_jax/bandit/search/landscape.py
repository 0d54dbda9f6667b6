"""What simulated annealing walks on: energies, neighbourhoods and the temperature scale of a round.

Source: Peleg et al. 2025 (PAUSE), (18), (19), rules R1 and R2 of section IV-B; Ben Ami et al. 2025
(BSFL), section V.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit.search.problem import Problem, shuffled
from pause_jax.rng.summation import on_grid, tree_sum

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

NEIGHBOURHOODS = ("pause", "alsa", "vanilla")
# The omega of (19): C must exceed the largest energy difference, in float32 too.
OMEGA = 1e-6


class Landscape(NamedTuple):
    """What stays fixed while the chains of one round walk.

    Attributes:
      index: float [K], finite: untried clients get a value that keeps the order of all energies.
      weight: float [K], rounded so that sums of m have the same bits in any order.
      ranks: int32 [L, K], place of each client in each sorted list of R2; ties at random.
      available: bool [K].
      temperature_scale: scalar C.
    """

    index: Float[Array, " K"]  # type: ignore[assignment]  # shadows tuple.index, which nobody needs
    weight: Float[Array, " K"]
    ranks: Int[Array, "L K"]
    available: Bool[Array, " K"]
    temperature_scale: Float[Array, ""]


def make_landscape(
    problem: Problem, num_selected: int, available: Array, neighbourhood: str, key: Array
) -> Landscape:
    """Sort the lists of R2, set the temperature scale C, and make the index finite.

    Args:
      problem: index [K] and additive terms [L, K] (g first, then p).
      num_selected: m.
      available: bool [K].
      neighbourhood: ``pause`` (lists ucb, g, p; C by (19)), ``alsa`` (lists ucb, g; C = Delta_max)
        or ``vanilla`` (R1 alone; C = 2 alpha + gamma + 1).
      key: orders equal values in the lists at random, where the authors perturb them by 1e-8.

    Returns:
      The landscape.
    """
    index = _finite(problem.index, problem.weight, num_selected, available)
    lists = jnp.concatenate([problem.index[None], problem.terms])
    lists = lists[: {"pause": len(lists), "alsa": 2, "vanilla": 0}[neighbourhood]]
    ranks = _ranks(lists, key)
    scale = problem.energy_range
    if neighbourhood == "pause":
        scale = _largest_difference(index, problem.terms, num_selected, available)
        scale = scale * (1 + OMEGA) + OMEGA
    return Landscape(index, on_grid(problem.weight, num_selected), ranks, available, scale)


def _extremes(values: Array, num_selected: int, available: Array) -> tuple[Array, Array]:
    """The m largest values [K] of the available clients, descending, and the m smallest, ascending.

    These are B_m and A_m of (19). If fewer than m are available, -inf and +inf fill up.
    """
    high = lax.top_k(jnp.where(available, values, -jnp.inf), num_selected)[0]
    low = -lax.top_k(jnp.where(available, -values, -jnp.inf), num_selected)[0]
    return high, low


def _finite(index: Array, weight: Array, num_selected: int, available: Array) -> Array:
    """The index [K] with finite values for +-inf that keep the order of all energies.

    Sums of m weights differ by less than ``reach``, so a set whose lowest index is ``reach`` above
    the largest finite one has the larger energy whatever the weights are, as it has with +inf; in
    the same way for -inf. Between two such sets the weights decide. And differences exist, which
    the acceptance rule needs.
    """
    high, low = _extremes(weight, num_selected, available)
    reach = tree_sum(high) - tree_sum(low) + 1.0
    reach = jnp.where(jnp.isfinite(reach), reach, 1.0)  # fewer than m available: no walk at all
    finite = jnp.isfinite(index) & available
    any_finite = jnp.any(finite)
    top = jnp.where(any_finite, jnp.max(jnp.where(finite, index, -jnp.inf)), 0.0)
    bottom = jnp.where(any_finite, jnp.min(jnp.where(finite, index, jnp.inf)), 0.0)
    index = jnp.where(index == jnp.inf, top + reach, index)
    return jnp.where(index == -jnp.inf, bottom - reach, index)


def _ranks(lists: Array, key: Array) -> Array:
    """Place of each client in each list [L, K] sorted ascending, int32 [L, K]; ties at random."""
    num_clients = lists.shape[1]
    place = jnp.arange(num_clients, dtype=jnp.int32)
    # Equal values stand in this order, the same one in all lists.
    order = shuffled(num_clients, jnp.ones(num_clients, bool), key)

    def rank(values: Array) -> Array:
        ascending = order[jnp.argsort(values[order], stable=True)]
        return jnp.zeros(num_clients, jnp.int32).at[ascending].set(place)

    return jax.vmap(rank)(lists) if len(lists) else jnp.zeros((0, num_clients), jnp.int32)


def _largest_difference(index: Array, terms: Array, num_selected: int, available: Array) -> Array:
    """Bound on the energy difference of two sets, (19) without its omega.

    The lowest index of a set is at most the m-th largest one and at least the smallest; the sum of
    each additive term lies between that of its m smallest and that of its m largest values.
    """
    index_high, index_low = _extremes(index, num_selected, available)
    highs, lows = jax.vmap(lambda term: _extremes(term, num_selected, available))(terms)
    return (
        jnp.min(index_high)
        - jnp.min(index_low)
        + jnp.sum(tree_sum(highs))
        - jnp.sum(tree_sum(lows))
    )


def walk_energy(landscape: Landscape, members: Array) -> Array:
    """Energy (18) of a membership mask, with the finite index of the landscape."""
    slowest = jnp.min(jnp.where(members, landscape.index, jnp.inf))
    return slowest + jnp.sum(jnp.where(members, landscape.weight, 0.0))


def neighbour_masks(landscape: Landscape, members: Array) -> tuple[Array, Array, Array, Array]:
    """The neighbourhood of R1 and R2 as two products of sets.

    A neighbour swaps i out and j in. It is *active* if i is the lowest member in one of the lists
    (any j will do), and *passive* if j would be the lowest member after the swap. For an i that is
    lowest in no list, the admissible j are the same: those below all members in some list. So the
    neighbourhood is (removable x outside) plus (others x below), disjoint, and a uniform draw from
    it needs no enumeration.

    Args:
      landscape: the landscape.
      members: bool [K].

    Returns:
      (removable, outside, others, below), each bool [K].
    """
    outside = landscape.available & ~members
    if landscape.ranks.shape[0] == 0:  # vanilla: R1 alone
        return members, outside, jnp.zeros_like(members), jnp.zeros_like(members)
    num_clients = members.shape[0]
    lowest = jnp.min(jnp.where(members, landscape.ranks, num_clients), axis=1, keepdims=True)
    removable = members & jnp.any(landscape.ranks == lowest, axis=0)
    below = outside & jnp.any(landscape.ranks < lowest, axis=0)
    return removable, outside, members & ~removable, below


def num_swaps(leaving: Array, entering: Array) -> Array:
    """Swaps of one of the leaving clients for one of the entering ones, of masks bool [K].

    A float, exact up to 2^24 in float32: m (K - m) exceeds int32 in a large network.
    """
    return jnp.sum(leaving).astype(float) * jnp.sum(entering).astype(float)
