"""F3AST in plain NumPy, float64, from the paper's text and its program; and errors."""

import numpy as np


class F3ast:
    """Long-run rates, the gradient step that chooses, and the weights.

    Args:
      sizes: samples of each client.
      m: cohort size.
      beta: weight of the last round.
      bug: "" or an error: absent: the gradient times availability, so that absent clients fill up
        and take part (the program); early: weights by the rates before the choice; variance: the
        choice by p^2 / r, the terms of the variance, in place of their gradient.
    """

    def __init__(self, sizes, m, beta, bug=""):
        self.p = np.asarray(sizes, float) / np.sum(sizes)
        self.m, self.beta, self.bug = m, beta, bug
        self.rate = self.p.copy()

    def rank(self):
        """What clients are chosen by: the gradient of -sum p^2 / r."""
        power = 1 if self.bug == "variance" else 2
        return self.p**2 / self.rate**power

    def choose(self, available):
        """The chosen clients, the largest first (ties by number)."""
        if self.bug == "absent":
            rank = self.rank() * available
            return np.argsort(-rank, kind="stable")[: self.m].tolist()
        pool = [k for k in np.argsort(-self.rank(), kind="stable").tolist() if available[k]]
        return pool[: self.m]

    def step(self, chosen):
        """Move the rates by a choice; return its weights, summing to one."""
        before = self.rate
        self.rate = (1 - self.beta) * self.rate
        self.rate[chosen] += self.beta
        used = before if self.bug == "early" else self.rate
        weights = self.p[chosen] / used[chosen]
        return weights / weights.sum() if len(chosen) else weights
