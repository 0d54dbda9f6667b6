"""Polaris in plain NumPy, float64, from the paper's problem; and the errors of its program."""

import numpy as np
from scipy.optimize import minimize


def chances(size, stale, *, in_logs=False):
    """The q of least sum size / q + stale q by a general solver.

    ``in_logs``: as the program has it: x = log q with sum x = 1 and x >= 0, and the solution x,
    not its exponential, is taken for the probabilities.
    """
    n = len(size)
    scale = np.mean(size) + np.mean(stale)

    def cost(x):
        q = np.exp(x) if in_logs else x
        return (np.sum(size / q) + np.sum(stale * q)) / scale

    found = minimize(
        cost,
        np.full(n, 1 / n),
        method="SLSQP",
        bounds=[(0.0 if in_logs else 1e-7, 1.0)] * n,
        constraints={"type": "eq", "fun": lambda x: np.sum(x) - 1},
        options={"maxiter": 2000, "ftol": 1e-14},
    )
    return found.x / found.x.sum()


class Polaris:
    """What the server knows of each client, and the terms of the problem.

    Args:
      sizes: samples of each client.
      beta, gamma, alpha: weights of size and staleness, optimism for the unexplored.
      bug: "" or an error: cohort: p_k is the share in the cohort for those that returned, 1 / K
        for the others (the program); forgets: unexplored clients keep the bound they started with;
        square: G in place of G^2 in the first term.
    """

    def __init__(self, sizes, beta, gamma, alpha, bug=""):
        self.sizes = np.asarray(sizes, float)
        self.beta, self.gamma, self.alpha, self.bug = beta, gamma, alpha, bug
        n = len(sizes)
        self.share = np.full(n, 1 / n) if bug == "cohort" else self.sizes / self.sizes.sum()
        self.bound, self.staleness = np.full(n, 0.5), np.full(n, 0.01)
        self.unexplored = set(range(n))

    def terms(self):
        power = 1 if self.bug == "square" else 2
        return (
            self.beta * self.share**2 * self.bound**power,
            self.gamma * self.share**2 * self.staleness**2 * self.bound,
        )

    def update(self, received, late):
        """From the updates received in time, by client, and the clients whose are late."""
        norms = {k: float(np.sqrt(np.sum(np.square(u)))) for k, u in received.items()}
        self.unexplored -= set(norms)
        if norms and self.bug != "forgets":
            for k in self.unexplored:
                self.bound[k] = self.alpha * np.mean(list(norms.values()))
        for k, norm in norms.items():
            self.bound[k], self.staleness[k] = norm, 0.1
            if self.bug == "cohort":
                self.share[k] = self.sizes[k] / sum(self.sizes[j] for j in norms)
        for k in late:
            self.staleness[k] = 1.1
