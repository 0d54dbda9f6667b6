"""RBCS-F in plain NumPy, float64, from the published formulas; and the errors of public copies."""

import itertools

import numpy as np


class RbcsF:
    """Ridge regression per client, optimistic latencies, queues, and the problem of each round.

    Args:
      num_clients, m: K and m.
      num_features: entries of the reported context, without "took part in the last round".
      beta: rate at which every client is to take part.
      latency_weight, exploration, ridge: V, alpha, lambda.
      bug: "" or the error of a public implementation:
        gram_width: c^T H c in the confidence; scalar: ``c @ c.T`` of a 1-D array is added to H;
        uncut: no max(., 0); late: b takes the time of the client's previous participation;
        moment: tauhat = c^T b, and the queues are added instead of subtracted.
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
        bug="",
    ):
        self.m, self.beta, self.bug = m, beta, bug
        self.weight, self.alpha = latency_weight, exploration
        width = num_features + 1
        self.gram = [ridge * np.eye(width) for _ in range(num_clients)]
        self.moment = [np.zeros(width) for _ in range(num_clients)]
        self.queue = [0.0] * num_clients
        self.last = [0.0] * num_clients
        self.previous = [0.0] * num_clients
        self.context = [np.zeros(width)] * num_clients

    def receive(self, features):
        self.context = [np.append(f, s) for f, s in zip(features, self.last, strict=True)]

    def bounds(self):
        """Taubar of every client, for the contexts last heard."""
        out = []
        for c, gram, moment in zip(self.context, self.gram, self.moment, strict=True):
            estimate = c @ moment if self.bug == "moment" else c @ np.linalg.solve(gram, moment)
            spread = c @ gram @ c if self.bug == "gram_width" else c @ np.linalg.solve(gram, c)
            bound = estimate - self.alpha * np.sqrt(max(spread, 0.0))
            out.append(bound if self.bug == "uncut" else max(bound, 0.0))
        return out

    def objective(self, cohort, bounds):
        sign = 1 if self.bug == "moment" else -1
        slowest = max(bounds[k] for k in cohort)
        return self.weight * slowest + sign * sum(self.queue[k] for k in cohort)

    def brute_force(self, available):
        """(least objective, its cohort) over all cohorts of available clients."""
        bounds, size = self.bounds(), min(self.m, len(available))
        return min(
            (self.objective(cohort, bounds), cohort)
            for cohort in itertools.combinations(available, size)
        )

    def divide_and_conquer(self, available):
        """The published solver: every client in turn caps the time."""
        bounds, size, best = self.bounds(), min(self.m, len(available)), None
        for j in available:
            below = [k for k in available if bounds[k] <= bounds[j]]
            if len(below) < size:
                continue
            cohort = tuple(sorted(below, key=lambda k: -self.queue[k])[:size])
            value = self.objective(cohort, bounds)
            if best is None or value < best[0]:
                best = (value, cohort)
        return best

    def update(self, cohort, latency):
        for k, tau in zip(cohort, latency, strict=True):
            c = self.context[k]
            self.gram[k] = self.gram[k] + (c @ c.T if self.bug == "scalar" else np.outer(c, c))
            used = self.previous[k] if self.bug == "late" else tau
            self.moment[k] = self.moment[k] + used * c
            self.previous[k] = tau
        self.last = [float(k in set(cohort)) for k in range(len(self.last))]
        self.queue = [
            max(z + self.beta - x, 0.0) for z, x in zip(self.queue, self.last, strict=True)
        ]
