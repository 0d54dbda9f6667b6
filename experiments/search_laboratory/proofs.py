"""Paths through the search graph in the convergence proofs of BSFL and PAUSE.

Sources: BSFL (Ben Ami et al. 2025), Theorem 2, Appendix B; PAUSE (Peleg et al. 2025), Theorem 4,
Algorithm 3. BSFL's path fails on three clients. PAUSE's path holds, and so do both theorems.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

Path = list[frozenset[int]]


def bsfl_path(
    index: Sequence[float],
    g: Sequence[float],
    start: frozenset[int],
    goal: frozenset[int],
    *,
    repaired: bool = False,
) -> Path:
    """Return the path of BSFL's proof of Theorem 2 (Appendix B), phases P1 and P2.

    As printed, it adds ``argmax over S*`` even if that client is already in the set, and P2 removes
    ``argmin over S_0`` of g at every step.

    Args:
      index: ucb of each client, distinct.
      g: reward g of each client, distinct.
      start: S_0.
      goal: S*.
      repaired: read ``S* minus S_j`` for S* and ``S_j`` for S_0, the apparent intention.

    Returns:
      States up to the goal, to the first set of the wrong size, or to the first repetition.
    """
    path, ucb, gain = [start], index.__getitem__, g.__getitem__
    lowest, phase, seen = min(goal, key=ucb), 1, set()
    if start != goal and not (repaired and lowest in start):
        first = start - {min(start, key=ucb)} | {lowest}
        path += [first] * (first != start)
    while (here := path[-1]) != goal and len(here) == len(goal) and (phase, here) not in seen:
        seen.add((phase, here))
        if phase == 1 and min(here, key=ucb) == lowest:
            phase = 2
            continue
        key = ucb if phase == 1 else gain
        leaver = min(here if repaired or phase == 1 else start, key=key)
        path.append(here - {leaver} | {max(goal - here if repaired else goal, key=key)})
    return path


def algorithm_3_path(
    rng: np.random.Generator, index: Sequence[float], start: frozenset[int], goal: frozenset[int]
) -> Path:
    """Return the path of PAUSE's proof of Theorem 4: Algorithm 3 on the ucb list alone."""
    path, ucb = [start], index.__getitem__
    while (here := path[-1]) != goal:
        enter, leave = max(goal - here, key=ucb), min(here, key=ucb)
        if ucb(leave) > ucb(enter):
            leave = int(rng.choice(sorted(here - goal)))
        path.append(here - {leave} | {enter})
    return path


def path_fault(path: Path, goal: frozenset[int], lists: Sequence[Sequence[float]]) -> str:
    """Return the first fault of a path to ``goal``, or an empty string.

    Neighbours are checked by the definition of R1 and R2 with these lists.
    """
    for a, b in itertools.pairwise(path):
        if len(b) != len(goal):
            return "a set of the wrong size"
        if a == b:
            break  # stays here forever
        lowest_a, lowest_b = ({min(s, key=values.__getitem__) for values in lists} for s in (a, b))
        if len(a - b) != 1 or not ((a - b) <= lowest_a or (b - a) <= lowest_b):
            return "a step that is no neighbour"
    return "" if path[-1] == goal else "never arrives"


class CounterExample(NamedTuple):
    """Instance in which BSFL's path fails. Client k has ucb k, without loss of generality."""

    num_clients: int
    num_selected: int
    g: tuple[int, ...]
    start: frozenset[int]
    goal: frozenset[int]
    path: Path
    fault: str


def counter_examples(max_clients: int, *, repaired: bool = False) -> Iterator[CounterExample]:
    """Yield every instance (up to order) where :func:`bsfl_path` fails, smallest K and m first."""
    for num_clients in range(2, max_clients + 1):
        for num_selected in range(1, num_clients):
            sets = list(map(frozenset, itertools.combinations(range(num_clients), num_selected)))
            for g in itertools.permutations(range(num_clients)):
                for start, goal in itertools.product(sets, sets):
                    path = bsfl_path(range(num_clients), g, start, goal, repaired=repaired)
                    if fault := path_fault(path, goal, (range(num_clients), g)):
                        yield CounterExample(num_clients, num_selected, g, start, goal, path, fault)
