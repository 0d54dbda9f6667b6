"""Inclusion probabilities and DepRound, step by step, from the papers' text."""

import numpy as np


def allocation(weight, among, total):
    """min(1, c weight) of sum ``total``: whoever exceeds 1 is fixed there, again and again."""
    p = np.zeros(len(weight))
    free, left = [k for k in range(len(weight)) if among[k]], float(total)
    while free:
        scale = left / sum(weight[k] for k in free)
        over = [k for k in free if scale * weight[k] > 1]
        if not over:
            for k in free:
                p[k] = scale * weight[k]
            break
        for k in over:
            p[k] = 1.0
        free, left = [k for k in free if k not in over], left - len(over)
    return p


def dep_round(probability, rng):
    """The drawn clients: two fractional ones trade until one is 0 or 1 (Gandhi et al. 2006)."""
    p = np.array(probability, float)
    while len(open_ := np.flatnonzero((p > 1e-9) & (p < 1 - 1e-9))) > 1:
        i, j = rng.choice(open_, 2, replace=False)
        up, down = min(1 - p[i], p[j]), min(p[i], 1 - p[j])
        if rng.random() < down / (up + down):
            p[i], p[j] = p[i] + up, p[j] - up
        else:
            p[i], p[j] = p[i] - down, p[j] + down
    return np.flatnonzero(p > 0.5)
