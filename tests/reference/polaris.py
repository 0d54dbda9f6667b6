"""Polaris in plain NumPy, float64, from the paper's problem."""

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
    """What the server knows of each client.

    Args:
      sizes: samples of each client.
      alpha: optimism for the unexplored.
    """

    def __init__(self, sizes, alpha):
        self.alpha, n = alpha, len(sizes)
        self.bound, self.staleness = np.full(n, 0.5), np.full(n, 0.01)
        self.unexplored = set(range(n))

    def update(self, received, late):
        """From the updates received in time, by client, and the clients whose are late."""
        norms = {k: float(np.sqrt(np.sum(np.square(u)))) for k, u in received.items()}
        self.unexplored -= set(norms)
        if norms:
            for k in self.unexplored:
                self.bound[k] = self.alpha * np.mean(list(norms.values()))
        for k, norm in norms.items():
            self.bound[k], self.staleness[k] = norm, 0.1
        for k in late:
            self.staleness[k] = 1.1
