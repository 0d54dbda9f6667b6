"""Simulated annealing over sets of clients: PAUSE's Algorithm 2, BSFL's ALSA and vanilla annealing.

A landscape defines the energies, neighbourhoods and temperature scale of a round. `init_chain` and
`chain_step` run one chain. Several chains run under vmap, and the search returns the best set.

Source: Peleg et al. 2025 (PAUSE), Eqs. (18) and (19), and rules R1 and R2 in section IV-B; Ben Ami
et al. 2025 (BSFL), section V.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Info
from pause_jax.bandit.search.exact import SMALL, exact
from pause_jax.bandit.search.problem import Problem, Search, check_problem, set_energy, shuffled
from pause_jax.base.struct import number, static
from pause_jax.rng.summation import on_grid, tree_sum

NEIGHBOURHOODS = ("pause", "alsa", "vanilla")
# omega in Eq. (19) of PAUSE, which makes C exceed the largest energy difference even in float32.
OMEGA = 1e-6
# Maximum number of clients for which float32 uniforms are precise enough to draw a client.
FEW = 2**16


class Landscape(NamedTuple):
    """Energies, neighbourhoods and temperature scale shared by all chains of a round."""

    # Infinite values are replaced by finite values that preserve the order of all energies.
    index: Float[Array, " K"]  # type: ignore[assignment]  # shadows tuple.index, which is unused
    weight: Float[Array, " K"]  # rounded to make sums of m weights exact in any order
    ranks: Int[Array, "L K"]  # each client's rank in each list of R2, with ties broken at random
    available: Bool[Array, " K"]
    temperature_scale: Float[Array, ""]  # C


def make_landscape(
    problem: Problem, num_selected: int, available: Array, neighbourhood: str, key: Array
) -> Landscape:
    """Rank clients in R2's lists, compute C, make the index finite, and round weights to a grid.

    ``pause`` ranks by ucb, g and (if present) p, with C from Eq. (19). ``alsa`` ranks by ucb and g,
    and ``vanilla`` uses only R1. For ``alsa`` and ``vanilla``, C is ``problem.energy_range``. Ties
    are broken at random. (The authors' code perturbs the values by 1e-8 instead.)
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
    """Return the m largest values of available clients, descending, and the m smallest, ascending.

    These values are B_m and A_m in Eq. (19). Missing values are -inf and +inf, respectively.
    """
    high = lax.top_k(jnp.where(available, values, -jnp.inf), num_selected)[0]
    low = -lax.top_k(jnp.where(available, -values, -jnp.inf), num_selected)[0]
    return high, low


def _finite(index: Array, weight: Array, num_selected: int, available: Array) -> Array:
    """Replace +-inf in the index [K] with finite values that preserve the order of all energies.

    The acceptance rule needs finite energy differences. Sums of m weights differ by less than
    ``reach``. An index value that exceeds all finite values by ``reach`` therefore acts like +inf.
    """
    high, low = _extremes(weight, num_selected, available)
    reach = tree_sum(high) - tree_sum(low) + 1.0
    reach = jnp.where(jnp.isfinite(reach), reach, 1.0)  # infinite if fewer than m are available
    finite = jnp.isfinite(index) & available
    any_finite = jnp.any(finite)
    top = jnp.where(any_finite, jnp.max(jnp.where(finite, index, -jnp.inf)), 0.0)
    bottom = jnp.where(any_finite, jnp.min(jnp.where(finite, index, jnp.inf)), 0.0)
    index = jnp.where(index == jnp.inf, top + reach, index)
    return jnp.where(index == -jnp.inf, bottom - reach, index)


def _ranks(lists: Array, key: Array) -> Array:
    """Return the ascending ranks of the clients in each list [L, K], with ties broken at random."""
    num_clients = lists.shape[1]
    place = jnp.arange(num_clients, dtype=jnp.int32)
    order = shuffled(num_clients, jnp.ones(num_clients, bool), key)  # breaks ties in all lists

    def rank(values: Array) -> Array:
        ascending = order[jnp.argsort(values[order], stable=True)]
        return jnp.zeros(num_clients, jnp.int32).at[ascending].set(place)

    return jax.vmap(rank)(lists) if len(lists) else jnp.zeros((0, num_clients), jnp.int32)


def _largest_difference(index: Array, terms: Array, num_selected: int, available: Array) -> Array:
    """Compute an upper bound on energy differences between sets (PAUSE, Eq. 19, without omega)."""
    index_high, index_low = _extremes(index, num_selected, available)
    highs, lows = jax.vmap(lambda term: _extremes(term, num_selected, available))(terms)
    of_index = jnp.min(index_high) - jnp.min(index_low)
    return of_index + jnp.sum(tree_sum(highs)) - jnp.sum(tree_sum(lows))


def walk_energy(landscape: Landscape, members: Array) -> Array:
    """Compute the energy (PAUSE, Eq. 18) of the set with mask ``members`` in a landscape."""
    slowest = jnp.min(jnp.where(members, landscape.index, jnp.inf))
    return slowest + jnp.sum(jnp.where(members, landscape.weight, 0.0))


def neighbour_masks(landscape: Landscape, members: Array) -> tuple[Array, Array, Array, Array]:
    """Return a set's neighbourhood (R1 and R2) as masks [K]: removable, outside, others, below.

    A neighbour of a set is obtained by swapping a member i for an available non-member j. A swap is
    *active* if i is the lowest member in some list, and *passive* if j is below all members in some
    list. The neighbourhood is the disjoint union of (removable x outside) and (others x below).
    """
    outside = landscape.available & ~members
    if landscape.ranks.shape[0] == 0:  # vanilla uses only R1
        return members, outside, jnp.zeros_like(members), jnp.zeros_like(members)
    lowest = jnp.min(jnp.where(members, landscape.ranks, len(members)), axis=1, keepdims=True)
    removable = members & jnp.any(landscape.ranks == lowest, axis=0)
    below = outside & jnp.any(landscape.ranks < lowest, axis=0)
    return removable, outside, members & ~removable, below


def num_swaps(leaving: Array, entering: Array) -> Array:
    """Count the pairs (leaving client, entering client), given masks [K] of both groups.

    The count is a float (exact up to 2^24 in float32), because m (K - m) can overflow int32.
    """
    return jnp.sum(leaving).astype(float) * jnp.sum(entering).astype(float)


class ChainState(NamedTuple):
    """Chain state. Both masks have m true entries, or fewer if fewer clients are available."""

    members: Bool[Array, " K"]
    energy: Float[Array, ""]
    best_members: Bool[Array, " K"]
    best_energy: Float[Array, ""]


class AnnealingTrace(NamedTuple):
    """Annealing results. Per-step energies are computed from the landscape's index and weight."""

    clients: Int[Array, " m"]  # best set over all chains, ascending
    energy: Float[Array, ""]  # energy of this set (PAUSE, Eq. 18)
    best_energy: Float[Array, "chains steps"]  # best energy of each chain after each step
    current_energy: Float[Array, "chains steps"]  # energy of each chain's set after each step
    acceptance_rate: Float[Array, ""]  # fraction of accepted steps over all chains


def init_chain(key: Array, landscape: Landscape, num_selected: int) -> ChainState:
    """Start a chain at m random available clients, or at all of them if there are fewer than m."""
    num_clients = landscape.index.shape[0]
    order = shuffled(num_clients, landscape.available, key)
    members = jnp.zeros(num_clients, bool).at[order[:num_selected]].set(True)
    members &= landscape.available
    energy = walk_energy(landscape, members)
    return ChainState(members, energy, members, energy)


def chain_step(
    bits: Array, state: ChainState, step: Array, landscape: Landscape, cooling: Array | float
) -> tuple[ChainState, Array]:
    """Propose a random neighbour, apply the Metropolis rule, and return (state, accepted).

    An uphill or level move is always accepted. A downhill move is accepted with probability
    ``exp((E(new) - E(old)) / tau)``, where ``tau = C / (kappa ln(1 + step))``. (With the sign
    printed in the paper, every move would be accepted.)

    Each of the n clients that may leave (or enter) is drawn with probability 1 / n. The relative
    error is at most n / 2^23 (4e-5 for n = 300), or n / 2^32 in networks with more than ``FEW``
    clients. ``bits`` contains four independent random words, uint32 [4].
    """
    removable, outside, others, below = neighbour_masks(landscape, state.members)
    num_active, num_passive = num_swaps(removable, outside), num_swaps(others, below)
    kind, leave, enter, luck = bits
    active = _uniform(kind) * (num_active + num_passive) < num_active
    i = _pick(jnp.where(active, removable, others), leave)
    j = _pick(jnp.where(active, outside, below), enter)
    place = jnp.arange(state.members.shape[0])
    proposal = (state.members & (place != i)) | (place == j)

    energy = walk_energy(landscape, proposal)
    temperature = landscape.temperature_scale / (cooling * jnp.log1p(step.astype(energy.dtype)))
    chance = jnp.exp(jnp.minimum(energy - state.energy, 0.0) / temperature)
    accept = (energy >= state.energy) | (_uniform(luck) < chance)
    accept &= num_active + num_passive > 0
    better = accept & (energy > state.best_energy)
    state = ChainState(
        members=jnp.where(accept, proposal, state.members),
        energy=jnp.where(accept, energy, state.energy),
        best_members=jnp.where(better, proposal, state.best_members),
        best_energy=jnp.where(better, energy, state.best_energy),
    )
    return state, accept


def _uniform(word: Array) -> Array:
    """Convert a random word to a float32 in [0, 1), as ``jax.random.uniform`` does."""
    return (word >> 9).astype(jnp.float32) * 2.0**-23


def _pick(mask: Array, word: Array) -> Array:
    """Return the index of a True entry of a mask, drawn uniformly with a single random word."""
    # With few clients, multiplying by a triangular [K, K] matrix is faster than XLA's cumsum.
    if mask.shape[0] <= SMALL:
        place = mask.astype(jnp.float32) @ jnp.triu(jnp.ones((mask.shape[0],) * 2))
    else:
        place = jnp.cumsum(mask)
    return jnp.argmax(place > _below(word, place[-1], mask.shape[0]))


def _below(word: Array, count: Array, num_clients: int) -> Array:
    """Map a random word to a uniform integer in [0, count), for count <= ``num_clients`` (static).

    Float32 uniforms take only 2^23 values, too few to draw one of 10^6 integers uniformly.
    """
    if num_clients > FEW:
        return (word % jnp.maximum(count, 1).astype(jnp.uint32)).astype(count.dtype)
    return jnp.minimum(jnp.floor(_uniform(word) * count), count - 1)


# Results of a scan over steps: final state, and (best energy, energy, accepted) of each step.
_Steps = tuple[ChainState, tuple[Array, Array, Array]]


def anneal(
    key: Array,
    problem: Problem,
    num_selected: int,
    *,
    available: Array | None = None,
    neighbourhood: str = "pause",
    steps: int = 500,
    chains: int = 1,
    cooling: Array | float = 1.0,
) -> AnnealingTrace:
    """Run ``chains`` independent chains and return the best set that any of them visited.

    Args:
      key: random key for tie-breaking, initial sets and steps.
      problem: maximisation problem of the round.
      num_selected: m, cohort size.
      available: bool [K], or None if all clients are available.
      neighbourhood: one of ``NEIGHBOURHOODS``.
      steps: annealing steps per chain.
      chains: number of chains.
      cooling: kappa, divisor of the temperature.

    Returns:
      Trace with m distinct clients, including unavailable ones only if fewer than m are available.

    Raises:
      ValueError: if the shapes disagree, m is out of range, or an untraced value is NaN.
    """
    check_problem(problem.index, problem.weight, num_selected)
    available = jnp.ones(problem.index.shape, bool) if available is None else available
    landscape_key, chain_key = jax.random.split(key)
    landscape = make_landscape(problem, num_selected, available, neighbourhood, landscape_key)

    def body(state: ChainState, inputs: tuple[Array, Array]) -> _Steps:
        step, bits = inputs
        state, moved = chain_step(bits, state, step, landscape, cooling)
        return state, (state.best_energy, state.energy, moved)

    def run(key: Array) -> _Steps:
        init_key, steps_key = jax.random.split(key)
        start = init_chain(init_key, landscape, num_selected)
        # Drawing the random words in each step would cost more than the step itself.
        bits = jax.random.bits(steps_key, (steps, 4), jnp.uint32)
        return lax.scan(body, start, (jnp.arange(1, steps + 1), bits))

    final, (best_energy, current_energy, moved) = jax.vmap(run)(jax.random.split(chain_key, chains))
    members = final.best_members[jnp.argmax(final.best_energy)]
    # Members come first. Other clients fill slots only if fewer than m clients are available.
    clients = jnp.sort(jnp.argsort(~members, stable=True)[:num_selected]).astype(jnp.int32)
    energy = set_energy(problem.index, problem.weight, clients, available)
    return AnnealingTrace(clients, energy, best_energy, current_energy, jnp.mean(moved))


class Annealing(Search):
    """Simulated annealing search (see :func:`anneal`).

    Attributes:
      neighbourhood: ``pause``, ``alsa`` or ``vanilla``.
      steps: steps per chain and round (authors: 500 in the small network, 3,000 in the large one).
      chains: number of independent chains. The best set found by any chain is selected.
      cooling: kappa, divisor of the temperature (1 in the paper; 30 or 70 in the authors' runs).
    """

    name: ClassVar[str] = "annealing"
    summary: ClassVar[str] = "simulated annealing, Algorithm 2 (SA-PAUSE)"

    neighbourhood: str = static(default="pause", choices=NEIGHBOURHOODS)
    steps: int = static(default=500, at_least=1)
    chains: int = static(default=1, at_least=1)
    cooling: float = number(default=30.0, above=0)

    def __call__(
        self, key: Array, problem: Problem, num_selected: int, available: Array
    ) -> tuple[Array, Info]:
        trace = anneal(
            key,
            problem,
            num_selected,
            available=available,
            neighbourhood=self.neighbourhood,
            steps=self.steps,
            chains=self.chains,
            cooling=self.cooling,
        )
        weight = jnp.where(available, problem.weight, 0.0)
        best_set, best = exact(problem.index, weight, num_selected, available=available)
        # If the energies are equal and infinite, the gap is the difference of the weight sums.
        rest = jnp.sum(weight[best_set]) - jnp.sum(weight[trace.clients])
        tied = jnp.where(jnp.isinf(best), rest, 0.0)
        gap = jnp.where(best == trace.energy, tied, best - trace.energy)
        return trace.clients, Info(trace.energy, gap, trace.acceptance_rate)
