"""REFL's choice and its weights of stale updates in plain NumPy, from the paper; and errors."""

import numpy as np


class Refl:
    """The slot that is asked about, and the clients that are preferred.

    Args:
      m: cohort size.
      alpha: of the mean duration.
      slot: its first value, seconds.
      bug: "" or an error: never: clients that leave within this slot count as those that stay
        (the program); short: one client less unless more are preferred than are wanted (the
        program takes the size of a list less one); lost: lost updates count as stragglers that
        are due; now: the slot begins now.
    """

    def __init__(self, m, alpha, slot, bug=""):
        self.m, self.alpha, self.slot, self.bug = m, alpha, slot, bug
        self.clock, self.due = 0.0, 0

    def priority(self, present):
        """The smaller, the earlier chosen; ``present``: (client, time) -> bool, for all clients."""
        n, start = present(self.clock).shape[0], self.clock + self.slot
        if self.bug == "now":
            start = self.clock
        stays = present(start) & present(start + self.slot)
        if self.bug == "never":
            leaves_now = ~present(start)
            return np.where(leaves_now, np.ones(n), stays.astype(float))
        return stays.astype(float)

    def target(self, available, priority):
        wanted = min(max(self.m - self.due, 1), int(np.sum(available)))
        if self.bug == "short" and np.sum(available & (priority == 0)) <= wanted:
            wanted = max(wanted - 1, 0)
        return wanted

    def update(self, lasted, late, lost, clock):
        """From a round's duration (None if nobody took part) and numbers of late and lost."""
        if lasted is not None:
            self.slot = (1 - self.alpha) * lasted + self.alpha * self.slot
        self.due = late + (lost if self.bug == "lost" else 0)
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
