"""E3CS in plain NumPy, float64, from the paper's text."""

import numpy as np


class E3cs:
    """Exponential weights, their allocation with a floor, and the update of the chosen.

    Args:
      num_clients, m: K and m.
      quota: the floor sigma is quota m / K.
      rate: eta.
    """

    def __init__(self, num_clients, m, quota, rate):
        self.m, self.quota, self.rate = m, quota, rate
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
        for k in chosen:
            if arrived[k] and not over[k]:
                self.log_weight[k] += (m - len(pool) * sigma) * self.rate / p[k] / len(pool)
