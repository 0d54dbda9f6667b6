"""Laboratory for the searches: energies and gaps, the search graph, times.

Call these functions from a script, not within a trace. Sources: PAUSE Table I and section IV-B;
BSFL section V and Figs. 3-4. The paths of the convergence proofs are in ``proofs``.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

from pause_jax.bandit.search.annealing import (
    NEIGHBOURHOODS,
    AnnealingTrace,
    Landscape,
    anneal,
    make_landscape,
    neighbour_masks,
    num_swaps,
)
from pause_jax.bandit.search.exact import exact
from pause_jax.bandit.search.problem import Problem, shuffled

# "ucb" is R2 with the ucb list alone, which is sufficient for Algorithm 3.
RULES = (*NEIGHBOURHOODS, "ucb")
# Tolerated difference of two float32 sums of a cohort, relative to 1 + |energy|.
TOLERANCE = 1e-5
# kappa at which every move is accepted, as in the acceptance rule with its printed sign.
ACCEPT_ALL = 1e-30


# ---------------------------------------------------------------- energies and gaps


@functools.partial(jax.jit, static_argnames=("num_selected", "neighbourhood", "steps", "chains"))
def traces(
    keys: Array,
    problems: Problem,
    num_selected: int,
    *,
    neighbourhood: str = "pause",
    steps: int = 500,
    chains: int = 1,
    cooling: Array | float = 1.0,
) -> AnnealingTrace:
    """Anneal a batch of problems.

    Args:
      keys: typed keys [n].
      problems: n problems with index [n, K], terms [n, L, K] (g first, then p), energy_range [n].
        Build a problem p with ``pause_jax.bandit.reward.problem_of``, or from custom terms with
        ``cohort_problem``. ``jax.tree.map(lambda leaf: leaf[None], p)`` turns it into a batch.
      num_selected: m.
      neighbourhood: as in :func:`pause_jax.bandit.search.anneal`.
      steps: annealing steps per chain.
      chains: number of chains per problem.
      cooling: kappa. ``ACCEPT_ALL`` accepts every move, a random walk. So does the printed rule,
        ``exp(-(E(U) - E(V)) / tau)``, which is at least 1 downhill.

    Returns:
      Traces, leaves [n, ...].
    """

    def run(key: Array, problem: Problem) -> AnnealingTrace:
        return anneal(
            key,
            problem,
            num_selected,
            neighbourhood=neighbourhood,
            steps=steps,
            chains=chains,
            cooling=cooling,
        )

    return jax.vmap(run)(keys, problems)


@functools.partial(jax.jit, static_argnames="num_selected")
def optima(problems: Problem, num_selected: int) -> Array:
    """Compute the exact optimum of each problem of a batch, float [n]."""
    return jax.vmap(lambda problem: exact(problem.index, problem.weight, num_selected)[1])(problems)


def gap_curves(trace: AnnealingTrace, optimum: ArrayLike, chains: int) -> NDArray[np.float64]:
    """Compute the optimality gap of the best of ``chains`` chains after each step.

    Args:
      trace: trace of n problems with C chains each.
      optimum: exact optima, float [n].
      chains: size of the groups of chains, a divisor of C.

    Returns:
      Gaps [n, C / chains, steps]; below zero only by rounding.

    Raises:
      ValueError: if chains does not divide C, or ``optimum`` does not have n entries.
    """
    best = np.asarray(trace.best_energy, np.float64)
    number, total, steps = best.shape
    if chains < 1 or total % chains or np.shape(optimum) != (number,):
        raise ValueError(
            f"chains = {chains}, optimum {np.shape(optimum)}: chains must divide {total}, those "
            f"of the trace, and there must be {number} optima."
        )
    best = best.reshape(number, total // chains, chains, steps).max(axis=2)
    return np.asarray(optimum, np.float64)[:, None, None] - best


def at_optimum(gaps: NDArray[np.float64], optimum: ArrayLike) -> NDArray[np.bool_]:
    """Return where gaps [n, ...] are zero up to ``TOLERANCE``, relative to 1 + |optimum| [n]."""
    allowed = TOLERANCE * (1 + np.abs(np.asarray(optimum, np.float64)))
    return gaps <= allowed.reshape(-1, *(1,) * (gaps.ndim - 1))


# ---------------------------------------------------------------- the search graph


@functools.partial(jax.jit, static_argnames=("num_selected", "rule"))
def landscape_for(key: Array, problem: Problem, num_selected: int, rule: str) -> Landscape:
    """Build the landscape of one of ``RULES``, with all clients available."""
    name = "alsa" if rule == "ucb" else rule
    available = jnp.ones(problem.index.shape, bool)
    landscape = make_landscape(problem, num_selected, available, name, key)
    return landscape._replace(ranks=landscape.ranks[:1]) if rule == "ucb" else landscape


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def random_sets(key: Array, num_clients: int, num_selected: int, number: int) -> Array:
    """Draw membership masks of uniformly random sets, bool [number, K]."""
    everyone = jnp.ones(num_clients, bool)

    def draw(key: Array) -> Array:
        order = shuffled(num_clients, everyone, key)
        return ~everyone.at[order[:num_selected]].set(False)

    return jax.vmap(draw)(jax.random.split(key, number))


_masks = jax.jit(jax.vmap(neighbour_masks, in_axes=(None, 0)))
_swaps = jax.vmap(num_swaps)


@jax.jit
def degrees(landscape: Landscape, members: ArrayLike) -> Array:
    """Count the neighbours of sets given as masks [n, K], float [n], exact up to 2^24."""
    removable, outside, others, below = _masks(landscape, jnp.asarray(members))
    return _swaps(removable, outside) + _swaps(others, below)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def sampled_degrees(
    key: Array, problems: Problem, num_selected: int, rule: str, number: int
) -> Array:
    """Count the neighbours of ``number`` random sets in each of n problems, float [n, number].

    The same key draws the same sets for every rule.
    """
    members = random_sets(key, problems.index.shape[1], num_selected, number)

    def sample(problem: Problem) -> Array:
        return degrees(landscape_for(key, problem, num_selected, rule), members)

    return jax.vmap(sample)(problems)


def enumerate_sets(num_clients: int, num_selected: int) -> NDArray[np.bool_]:
    """Return all C(K, m) sets as masks, in lexicographic order, for small K."""
    sets = list(itertools.combinations(range(num_clients), num_selected))
    masks = np.zeros((len(sets), num_clients), bool)
    np.put_along_axis(masks, np.array(sets), True, axis=1)
    return masks


def search_graph(landscape: Landscape, members: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the adjacency [n, n] of sets given as masks [n, K]; row i has the neighbours of i."""
    parts = _masks(landscape, members)
    removable, outside, others, below = (np.asarray(part, np.int64) for part in parts)
    inside, missing = members.astype(np.int64).T, (~members).astype(np.int64).T
    # Only one client leaves and only one enters, so each product counts only this client.
    one_swap = members.astype(np.int64) @ missing == 1
    allowed = (removable @ missing) * (outside @ inside) + (others @ missing) * (below @ inside)
    return one_swap & (allowed > 0)


def is_connected(adjacency: NDArray[np.bool_]) -> bool:
    """Return whether every node can be reached from the first."""
    return bool(connected_components(adjacency, directed=False)[0] == 1)


# ---------------------------------------------------------------- times and slopes


def median_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """Return the median wall time of a compiled call, until its result is ready."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def fit_slope(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Fit y ~ x^slope by least squares on logarithms; return the slope and its standard error.

    Args:
      x: at least three positive values.
      y: positive values.
    """
    line, covariance = np.polyfit(np.log(np.asarray(x)), np.log(np.asarray(y)), 1, cov=True)
    return float(line[0]), float(np.sqrt(covariance[0, 0]))
