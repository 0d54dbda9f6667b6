"""HiCS-FL in plain NumPy: entropies, clusters and the chance of each cohort."""

import collections

import numpy as np

from tests.reference.clustered import ward_merges


def entropy(update, temperature):
    """Of softmax(update / T), float64."""
    scaled = np.asarray(update, np.float64) / temperature
    share = np.exp(scaled - scaled.max())
    share /= share.sum()
    return float(-sum(p * np.log(p) for p in share if p > 0))


def distance(layers, entropies, weight):
    """Angles between whole output layers plus ``weight`` times the difference of entropies."""
    apart = np.zeros((len(layers), len(layers)))
    for i, a in enumerate(layers):
        for j, b in enumerate(layers):
            a, b = np.ravel(a).astype(float), np.ravel(b).astype(float)
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            angle = 0.0 if i == j else np.arccos(np.clip(cosine, -1, 1))
            apart[i, j] = angle + weight * abs(entropies[i] - entropies[j])
    return apart


def clusters(apart, number):
    """Ward's clusters: merged until ``number`` are left."""
    whole = [[i] for i in range(len(apart))]
    for a, b in ward_merges(apart):
        if len(whole) > number:
            whole = [group for group in whole if group not in (a, b)] + [a + b]
    return sorted(sorted(group) for group in whole)


def inclusion(groups, taste, among, count):
    """Chance of each client to be among ``count`` draws: of a cluster, then of a client in it."""
    chance: dict[int, float] = collections.defaultdict(float)

    def draw(left, probability, draws):
        if not (draws and left):
            return
        alive = [g for g, group in enumerate(groups) if set(group) & left]
        total = sum(np.exp(taste[g]) for g in alive)
        for g in alive:
            here = sorted(set(groups[g]) & left)
            for client in here:
                each = probability * np.exp(taste[g]) / total / len(here)
                chance[client] += each
                draw(left - {client}, each, draws - 1)

    draw(frozenset(among), 1.0, count)
    return chance
