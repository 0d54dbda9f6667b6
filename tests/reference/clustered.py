"""Clustered sampling by similarity in whole numbers and fractions."""

import collections
from fractions import Fraction

import numpy as np


def large_clients(sizes, m):
    """(private bins, their clients' rests) of Algorithm 2: floor(m p_i) bins for client i."""
    capacity, rest, private = sum(sizes), [m * n for n in sizes], []
    for i, n in enumerate(sizes):
        for _ in range(m * n // capacity):
            private.append(i)
            rest[i] -= capacity
    return private, rest


def poured(sizes, m, groups, rest=None, private=()):
    """Bins of Algorithm 2 for given groups: a list of m dicts client -> probability.

    Args:
      sizes: whole numbers of samples.
      m: number of bins.
      groups: lists of clients, each in the order in which it is poured; they are sorted by mass
        here, those of equal mass stay as they come.
      rest: mass of each client left for the groups; m n_i if left out.
      private: clients that fill a bin each.
    """
    capacity = sum(sizes)
    rest = [m * n for n in sizes] if rest is None else list(rest)
    bins = [collections.Counter({i: capacity}) for i in private]
    groups = sorted(groups, key=lambda group: sum(rest[i] for i in group))
    open_bins = m - len(bins)
    seeds, others = groups[len(groups) - open_bins :], groups[: len(groups) - open_bins]
    for seed in reversed(seeds):
        bins.append(collections.Counter({i: rest[i] for i in seed}))
    k = len(private)
    for group in others:
        for i in group:
            mass = rest[i]
            while mass:
                while sum(bins[k].values()) == capacity:
                    k += 1
                some = min(mass, capacity - sum(bins[k].values()))
                bins[k][i] += some
                mass -= some
    return [{i: Fraction(v, capacity) for i, v in bin.items() if v} for bin in bins]


def matrix(bins, num_clients):
    rows = np.zeros((len(bins), num_clients))
    for row, bin in zip(rows, bins, strict=True):
        for i, value in bin.items():
            row[i] = float(value)
    return rows


def ward_merges(distance):
    """Ward's merges by Lance and Williams' recursion: pairs of lists of members, in their order.

    Slow: looks at all pairs for every merge.
    """
    size = len(distance)
    apart = {(i, j): float(distance[i][j]) for i in range(size) for j in range(i + 1, size)}
    members = {i: [i] for i in range(size)}

    def get(a, b):
        return apart[(a, b) if a < b else (b, a)]

    alive, new = list(members), size
    while len(alive) > 1:
        a, b = min(
            ((a, b) for x, a in enumerate(alive) for b in alive[x + 1 :]), key=lambda p: get(*p)
        )
        yield members[a], members[b]
        members[new] = members[a] + members[b]
        for c in alive:
            if c in (a, b):
                continue
            na, nb, nc = len(members[a]), len(members[b]), len(members[c])
            square = (
                (na + nc) * get(a, c) ** 2 + (nb + nc) * get(b, c) ** 2 - nc * get(a, b) ** 2
            ) / (na + nb + nc)
            apart[(c, new)] = max(square, 0.0) ** 0.5
        alive = [c for c in alive if c not in (a, b)] + [new]
        new += 1


def ward_clusters(distance, mass, capacity):
    """Ward's tree cut where a group outgrows ``capacity``; one that fits stays whole."""
    whole = [[i] for i in range(len(mass))]
    for a, b in ward_merges(distance):
        if sum(mass[i] for i in a + b) <= capacity:
            whole = [group for group in whole if group not in (a, b)] + [a + b]
    return sorted(sorted(group) for group in whole)
