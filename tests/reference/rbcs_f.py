"""RBCS-F in plain NumPy, float64, from the published formulas."""

import itertools

import numpy as np


class RbcsF:
    """Ridge regression per client, optimistic latencies, queues, and the problem of each round.

    Args:
      num_clients, m: K and m.
      num_features: entries of the reported context, without "took part in the last round".
      beta: rate at which every client is to take part.
      latency_weight, exploration, ridge: V, alpha, lambda.
    """

    def __init__(
        self,
        num_clients,
        m,
        num_features,
        beta,
        *,
        latency_weight,
        exploration,
        ridge=1.0,
    ):
        self.m, self.beta = m, beta
        self.weight, self.alpha = latency_weight, exploration
        width = num_features + 1
        self.gram = [ridge * np.eye(width) for _ in range(num_clients)]
        self.moment = [np.zeros(width) for _ in range(num_clients)]
        self.queue = [0.0] * num_clients
        self.last = [0.0] * num_clients
        self.context = [np.zeros(width)] * num_clients

    def receive(self, features):
        self.context = [np.append(f, s) for f, s in zip(features, self.last, strict=True)]

    def bounds(self):
        """Taubar of every client, for the contexts last heard."""
        out = []
        for c, gram, moment in zip(self.context, self.gram, self.moment, strict=True):
            estimate = c @ np.linalg.solve(gram, moment)
            spread = c @ np.linalg.solve(gram, c)
            out.append(max(estimate - self.alpha * np.sqrt(spread), 0.0))
        return out

    def objective(self, cohort, bounds):
        slowest = max(bounds[k] for k in cohort)
        return self.weight * slowest - sum(self.queue[k] for k in cohort)

    def brute_force(self, available):
        """(least objective, its cohort) over all cohorts of available clients."""
        bounds, size = self.bounds(), min(self.m, len(available))
        return min(
            (self.objective(cohort, bounds), cohort)
            for cohort in itertools.combinations(available, size)
        )

    def update(self, cohort, latency):
        for k, tau in zip(cohort, latency, strict=True):
            c = self.context[k]
            self.gram[k] = self.gram[k] + np.outer(c, c)
            self.moment[k] = self.moment[k] + tau * c
        self.last = [float(k in set(cohort)) for k in range(len(self.last))]
        self.queue = [
            max(z + self.beta - x, 0.0) for z, x in zip(self.queue, self.last, strict=True)
        ]
