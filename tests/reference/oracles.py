"""Slow, obvious float64 oracles for the mathematics: plain loops, no JAX, nothing shared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.integrate import quad

# ---------------------------------------------------------------- bandit and reward


def update(counts, mean_speed, clients, speed, active=None):
    """Counts and mean speeds after one round, equation (12) with its weights written out."""
    counts = [int(c) for c in counts]
    mean_speed = [float(s) for s in mean_speed]
    for slot, client in enumerate(clients):
        if active is not None and not active[slot]:
            continue
        total = counts[client] * mean_speed[client] + float(speed[slot])
        counts[client] += 1
        mean_speed[client] = total / counts[client]
    return counts, mean_speed


def ucb(counts, mean_speed, round_number, num_selected, speed_weight=1.0):
    """Equation (13), with t and not t - 1."""
    values = []
    for count, speed in zip(counts, mean_speed, strict=True):
        if count == 0:
            values.append(math.inf)
        else:
            bonus = math.sqrt((num_selected + 1) * math.log(round_number) / count)
            values.append(speed_weight * speed + bonus)
    return values


def generalization(counts, round_number, data_size, quality, num_selected, exponent):
    """Equation (8) with the data quality of BSFL (4)."""
    effective = [q * size for q, size in zip(quality, data_size, strict=True)]
    values = []
    for count, d in zip(counts, effective, strict=True):
        x = num_selected * d / sum(effective) - count / round_number
        magnitude = math.pow(abs(x), exponent)
        values.append(magnitude if x > 0 else -magnitude if x < 0 else 0.0)
    return values


# ---------------------------------------------------------------- budget schedules


def geometric_epsilon(total: float, decay: float, i: int) -> float:
    return total * (math.exp(decay) - 1) * math.exp(-decay * i)


def constant_epsilon(total: float, per_release: float, i: int) -> float:
    left = total - (i - 1) * per_release
    return min(left, per_release) if left > 1e-5 * per_release else 0.0


def uniform_epsilon(total: float, horizon: float, i: int) -> float:
    """The last release spends what is left of a fraction."""
    return total / horizon * min(max(horizon - (i - 1), 0.0), 1.0)


def table_epsilon(total: float, shares: Sequence[float], i: int) -> float:
    return total * shares[i - 1] if i <= len(shares) else 0.0


def remaining(epsilon: Callable[[int], float], total: float, participations: int) -> float:
    """p_k of (7): one minus the budget spent so far, summed term by term."""
    return 1 - math.fsum(epsilon(i) for i in range(1, participations + 1)) / total


# ---------------------------------------------------------------- maximisation (14)


def energy(index, weight, clients: Iterable[int]) -> float:
    clients = list(clients)
    return float(min(index[k] for k in clients)) + math.fsum(float(weight[k]) for k in clients)


def set_key(index, weight, clients: Iterable[int]) -> tuple[float, float]:
    """What sets are ordered by: the energy; if it is infinite, the sum of weights after it."""
    clients = list(clients)
    lowest = float(min(index[k] for k in clients))
    total = math.fsum(float(weight[k]) for k in clients)
    return (lowest, total) if math.isinf(lowest) else (lowest + total, 0.0)


def usable_sets(num_selected: int, available) -> list[tuple[int, ...]]:
    usable = [k for k, free in enumerate(available) if free]
    return list(itertools.combinations(usable, num_selected))


def best_sets(index, weight, num_selected: int, available=None) -> list[tuple[int, ...]]:
    """Every optimal set of available clients, by scoring all of them."""
    available = [True] * len(index) if available is None else available
    sets = usable_sets(num_selected, available)
    keys = [set_key(index, weight, clients) for clients in sets]
    top = max(keys)
    return [clients for clients, key in zip(sets, keys, strict=True) if key == top]


# ---------------------------------------------------------------- annealing


def temperature_scale(index, terms, num_selected: int, omega: float) -> float:
    """C of (19): both ends of each sorted list."""
    ascending = sorted(float(u) for u in index)
    scale = min(ascending[-num_selected:]) - min(ascending[:num_selected])
    for row in terms:
        ascending = sorted(float(w) for w in row)
        scale += math.fsum(ascending[-num_selected:]) - math.fsum(ascending[:num_selected])
    return scale + omega


def argmins(ranks, clients: Iterable[int]) -> set[int]:
    """The clients that are lowest in one of the lists; ranks are distinct, so one for each."""
    return {min(clients, key=lambda k: row[k]) for row in ranks}


def neighbours(
    ranks, clients: Iterable[int], available, rule_2: bool = True
) -> set[frozenset[int]]:
    """All sets that R1 (and R2, unless it is switched off) admit next to a set of clients."""
    here = frozenset(clients)
    found = set()
    for other in map(frozenset, usable_sets(len(here), available)):
        if len(here & other) != len(here) - 1:
            continue
        (leaving,), (entering,) = here - other, other - here
        active = leaving in argmins(ranks, here)
        passive = entering in argmins(ranks, other)
        if not rule_2 or active or passive:
            found.add(other)
    return found


# ---------------------------------------------------------------- latency


def two_groups_mean(num_clients: int) -> np.ndarray:
    """Mean latencies of the PAUSE experiments, client by client."""
    half = num_clients // 2
    means = []
    for k in range(num_clients):
        if k < half:
            means.append(0.05 + (0.15 / half) * (k + 1))
        else:
            means.append(0.7 + (0.2 / (num_clients - half)) * (k + 1 - half))
    return np.array(means)


def normal_moment(function, mean: float, std: float, edges: Sequence[float]) -> float:
    """E[function(X)] for a normal X, by adaptive quadrature between the given kinks."""
    low, high = mean - 12 * std, mean + 12 * std
    points = [low, *sorted(p for p in {*edges, mean} if low < p < high), high]

    def integrand(x):
        density = math.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
        return function(x) * density

    return math.fsum(
        quad(integrand, a, b, epsabs=1e-13, epsrel=1e-11, limit=200)[0]
        for a, b in itertools.pairwise(points)
    )


def exponential_moment(function, kink: float) -> float:
    """E[function(E)] for E ~ Exp(1), by adaptive quadrature; the function grows less than e^x."""
    points = sorted({0.0, *(10.0**power for power in range(-4, 3)), 600.0, max(kink, 0.0)})

    def integrand(x):
        return function(x) * math.exp(-x)

    return math.fsum(
        quad(integrand, a, b, epsabs=0, epsrel=1e-11, limit=200)[0]
        for a, b in itertools.pairwise(points)
    )
