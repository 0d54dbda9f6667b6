"""Simulated annealing over sets of clients (PAUSE Algorithm 2; ALSA; vanilla).

One chain is `init_chain` and `chain_step`; many chains run under vmap and the best is the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit.protocol import Info
from pause_jax.bandit.search.exact import SMALL, exact
from pause_jax.bandit.search.landscape import (
    NEIGHBOURHOODS,
    Landscape,
    make_landscape,
    neighbour_masks,
    num_swaps,
    walk_energy,
)
from pause_jax.bandit.search.problem import Problem, Search, check_problem, set_energy, shuffled
from pause_jax.base.struct import number, static

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


# Up to so many clients a float32 is fine enough to draw one of them.
FEW = 2**16


class ChainState(NamedTuple):
    """One chain. ``members`` and ``best_members`` are bool [K] with m true entries."""

    members: Bool[Array, " K"]
    energy: Float[Array, ""]
    best_members: Bool[Array, " K"]
    best_energy: Float[Array, ""]


class AnnealingTrace(NamedTuple):
    """What the chains did.

    Attributes:
      clients: int32 [m], the best set of all chains, ascending.
      energy: its energy (18).
      best_energy: float [chains, steps], best energy seen by each chain after each step. In a round
        with untried clients their +inf is replaced by a finite value that keeps the order.
      current_energy: float [chains, steps], energy of each chain's set after each step; the same
        finite values.
      acceptance_rate: share of steps that moved, over all chains.
    """

    clients: Int[Array, " m"]
    energy: Float[Array, ""]
    best_energy: Float[Array, "chains steps"]
    current_energy: Float[Array, "chains steps"]
    acceptance_rate: Float[Array, ""]


def init_chain(key: Array, landscape: Landscape, num_selected: int) -> ChainState:
    """Start at a uniformly random set of m available clients (all, if there are fewer)."""
    num_clients = landscape.index.shape[0]
    order = shuffled(num_clients, landscape.available, key)
    members = jnp.zeros(num_clients, bool).at[order[:num_selected]].set(True)
    members &= landscape.available
    energy = walk_energy(landscape, members)
    return ChainState(members, energy, members, energy)


def chain_step(
    bits: Array, state: ChainState, step: Array, landscape: Landscape, cooling: Array | float
) -> tuple[ChainState, Array]:
    """Propose a uniform neighbour and accept it by the Metropolis rule.

    An uphill or level move is always accepted, a downhill one with probability
    ``exp((E(new) - E(old)) / tau)``, ``tau = C / (kappa ln(1 + step))``. (The paper prints the
    opposite sign, which would accept every move.)

    Of n clients that may leave or enter each has the chance 1 / n, up to a share n / 2^23 of it in
    networks of up to ``FEW`` clients (4e-5 for 300), and n / 2^32 in larger ones.

    Args:
      bits: uint32 [4], independent random words of this step.
      state: the chain.
      step: j >= 1.
      landscape: the landscape.
      cooling: kappa.

    Returns:
      (state, whether the chain moved).
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
    uphill = energy >= state.energy
    accept = uphill | (
        _uniform(luck) < jnp.exp(jnp.minimum(energy - state.energy, 0.0) / temperature)
    )
    accept &= num_active + num_passive > 0
    better = accept & (energy > state.best_energy)
    return (
        ChainState(
            members=jnp.where(accept, proposal, state.members),
            energy=jnp.where(accept, energy, state.energy),
            best_members=jnp.where(better, proposal, state.best_members),
            best_energy=jnp.where(better, energy, state.best_energy),
        ),
        accept,
    )


def _uniform(word: Array) -> Array:
    """A number in [0, 1) from a random word: what ``jax.random.uniform`` makes of it in float32."""
    return (word >> 9).astype(jnp.float32) * 2.0**-23


def _pick(mask: Array, word: Array) -> Array:
    """A uniformly random true entry of a mask, from one random word."""
    # The running count; XLA's cumulative sum is slow on a CPU, a product of [K, K] is not if small.
    if mask.shape[0] <= SMALL:
        place = mask.astype(jnp.float32) @ jnp.triu(jnp.ones((mask.shape[0],) * 2))
    else:
        place = jnp.cumsum(mask)
    return jnp.argmax(place > _below(word, place[-1], mask.shape[0]))


def _below(word: Array, count: Array, num_clients: int) -> Array:
    """A whole number in [0, count) from a random word; ``num_clients``, static, bounds the count.

    A float has 2^23 values: of a million counts some would be an eighth likelier than others.
    """
    if num_clients > FEW:
        return (word % jnp.maximum(count, 1).astype(jnp.uint32)).astype(count.dtype)
    return jnp.minimum(jnp.floor(_uniform(word) * count), count - 1)


# State of a chain; best energy, energy and whether it moved.
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
      key: split over chains and steps.
      problem: what to maximise.
      num_selected: m.
      available: bool [K]; all by default.
      neighbourhood: one of ``NEIGHBOURHOODS``.
      steps: annealing steps of a chain.
      chains: number of chains.
      cooling: kappa, divides the temperature.

    Returns:
      The trace; its clients are m distinct clients, always.

    Raises:
      ValueError: if the shapes disagree, m is out of range, the neighbourhood is unknown, or there
        are no steps or chains.
    """
    check_problem(problem.index, problem.weight, num_selected)
    if neighbourhood not in NEIGHBOURHOODS or steps < 1 or chains < 1:
        raise ValueError(
            f"neighbourhood = {neighbourhood!r}, steps = {steps}, chains = {chains}: must be one "
            f"of {', '.join(NEIGHBOURHOODS)}, and steps and chains >= 1."
        )
    num_clients = problem.index.shape[0]
    available = jnp.ones(num_clients, bool) if available is None else available
    landscape_key, chain_key = jax.random.split(key)
    landscape = make_landscape(problem, num_selected, available, neighbourhood, landscape_key)

    def body(state: ChainState, inputs: tuple[Array, Array]) -> _Steps:
        step, bits = inputs
        state, moved = chain_step(bits, state, step, landscape, cooling)
        return state, (state.best_energy, state.energy, moved)

    def run(key: Array) -> _Steps:
        init_key, steps_key = jax.random.split(key)
        start = init_chain(init_key, landscape, num_selected)
        # All numbers at once: drawing them step by step costs more than the step.
        bits = jax.random.bits(steps_key, (steps, 4), jnp.uint32)
        return lax.scan(body, start, (jnp.arange(1, steps + 1), bits))

    final, (best_energy, current_energy, moved) = jax.vmap(run)(jax.random.split(chain_key, chains))
    members = final.best_members[jnp.argmax(final.best_energy)]
    # Members first; only if fewer than m are available do others fill up the slots.
    clients = jnp.sort(jnp.argsort(~members, stable=True)[:num_selected]).astype(jnp.int32)
    energy = set_energy(problem.index, problem.weight, clients, available)
    return AnnealingTrace(clients, energy, best_energy, current_energy, jnp.mean(moved))


class Annealing(Search):
    """Search by simulated annealing (see :func:`anneal`).

    Attributes:
      neighbourhood: ``pause``, ``alsa`` or ``vanilla``.
      steps: annealing steps a round (500 and 3,000 in the authors' small and large networks).
      chains: independent chains; the best set of all is used.
      cooling: kappa, divides the temperature (1 as printed; 30 or 70 in the authors' runs).
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
        # Between two infinite energies the sums of weights decide.
        rest = jnp.sum(weight[best_set]) - jnp.sum(weight[trace.clients])
        gap = jnp.where(
            best == trace.energy, jnp.where(jnp.isinf(best), rest, 0.0), best - trace.energy
        )
        return trace.clients, Info(trace.energy, gap, trace.acceptance_rate)
