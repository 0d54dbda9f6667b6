"""F3AST in plain NumPy, float64, from the paper's text."""

import numpy as np


class F3ast:
    """Long-run rates, the gradient step that chooses, and the weights.

    Args:
      sizes: samples of each client.
      m: cohort size.
      beta: weight of the last round.
    """

    def __init__(self, sizes, m, beta):
        self.p = np.asarray(sizes, float) / np.sum(sizes)
        self.m, self.beta = m, beta
        self.rate = self.p.copy()

    def rank(self):
        """What clients are chosen by: the gradient of -sum p^2 / r."""
        return (self.p / self.rate) ** 2

    def step(self, chosen):
        """Move the rates by a choice; return its weights, summing to one."""
        self.rate = (1 - self.beta) * self.rate
        self.rate[chosen] += self.beta
        weights = self.p[chosen] / self.rate[chosen]
        return weights / weights.sum() if len(chosen) else weights
