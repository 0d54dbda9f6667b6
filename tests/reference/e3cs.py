"""E3CS in plain NumPy, float64, from the paper's text; and the errors of a public copy."""

import math

import numpy as np


class E3cs:
    """Exponential weights, their allocation with a floor, and the update of the chosen.

    Args:
      num_clients, m: K and m.
      quota: the floor sigma is quota m / K.
      rate: eta.
      bug: "" or an error: cut: a probability above 1 is cut, and the others do not get the rest;
        everyone: clients that were not chosen learn too (both public: flsim-E3CS-impl);
        unweighted: x = 1 in place of 1 / p; full: those of probability 1 learn too.
    """

    def __init__(self, num_clients, m, quota, rate, bug=""):
        self.m, self.quota, self.rate, self.bug = m, quota, rate, bug
        self.log_weight = np.zeros(num_clients)

    def probabilities(self, available):
        """(p of each client, who is in the overflow set)."""
        pool = np.flatnonzero(available)
        m = min(self.m, len(pool))
        p, over = np.zeros(len(available)), np.zeros(len(available), bool)
        if m == len(pool):
            p[pool], over[pool] = 1.0, True
            return p, over
        sigma = self.quota * m / len(pool)
        w = np.exp(self.log_weight[pool] - self.log_weight[pool].max())
        rest = m - len(pool) * sigma
        share = sigma + rest * w / w.sum()
        over[pool] = share > 1
        if self.bug == "cut":
            p[pool] = np.minimum(share, 1)
            return p, over
        # w' = min(w, cap), with the largest cap for which no probability exceeds 1.
        low, high = 0.0, w.max()
        for _ in range(200):
            cap = (low + high) / 2
            capped = np.minimum(w, cap)
            fits = sigma + rest * capped.max() / capped.sum() <= 1
            low, high = (cap, high) if fits else (low, cap)
        capped = np.minimum(w, high)
        p[pool] = sigma + rest * capped / capped.sum()
        over[pool] = (w > high) & (share.max() > 1)
        return p, over

    def update(self, available, chosen, arrived):
        p, over = self.probabilities(available)
        pool = np.flatnonzero(available)
        m = min(self.m, len(pool))
        sigma = self.quota * m / max(len(pool), 1)
        for k in pool if self.bug == "everyone" else chosen:
            if arrived[k] and (not over[k] or self.bug == "full"):
                x = 1.0 if self.bug == "unweighted" else 1 / p[k]
                self.log_weight[k] += math.log(
                    math.exp((m - len(pool) * sigma) * self.rate * x / len(pool))
                )
