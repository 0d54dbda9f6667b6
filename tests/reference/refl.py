"""REFL's choice and its weights of stale updates in plain NumPy, from the paper."""

import numpy as np


class Refl:
    """The slot that is asked about, and the clients that are preferred.

    Args:
      m: cohort size.
      alpha: of the mean duration.
      slot: its first value, seconds.
    """

    def __init__(self, m, alpha, slot):
        self.m, self.alpha, self.slot = m, alpha, slot
        self.clock, self.due = 0.0, 0

    def priority(self, present):
        """The smaller, the earlier chosen; ``present``: (client, time) -> bool, for all clients."""
        start = self.clock + self.slot
        return (present(start) & present(start + self.slot)).astype(float)

    def target(self, available):
        return min(max(self.m - self.due, 1), int(np.sum(available)))

    def update(self, lasted, late, clock):
        """From a round's duration (None if nobody took part) and the number of late updates."""
        if lasted is not None:
            self.slot = (1 - self.alpha) * lasted + self.alpha * self.slot
        self.due = late
        self.clock = clock


def stale_weights(fresh, stale, age, beta, *, scale=1.0):
    """Factors of the weights of stale updates [s, d], beside fresh ones [n, d], which have 1.

    ``scale`` is 10 in the program, which divides the exponential by it: a stale update that
    differs not at all then keeps nine tenths of the boost.
    """
    mean, number = np.mean(fresh, axis=0), len(fresh)
    apart = [
        np.sum((mean - (u + number * mean) / (number + 1)) ** 2) / np.sum(mean**2) for u in stale
    ]
    boost = [1 - np.exp(-x / max(apart)) / scale for x in apart]
    return np.array([(1 - beta) / (age + 1) + beta * b for b in boost])
