"""Slow oracles of the policies for unequal budgets: the convex programs, by a general solver."""

import numpy as np
from scipy.optimize import minimize


def solved(objective, gradient, start, upper, weight=1.0, total=1.0):
    """argmin of a convex function over 0 <= x <= upper with sum(weight x) = total."""
    weight = np.broadcast_to(weight, np.shape(start))
    found = minimize(
        objective,
        start,
        jac=gradient,
        method="SLSQP",
        bounds=[(1e-9, upper)] * len(start),
        constraints={"type": "eq", "fun": lambda x: weight @ x - total, "jac": lambda x: weight},
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    # 8: no step that it can compute gets any lower.
    assert found.status in (0, 8), found.message
    return found.x


def biased(cost, share, m, bias_weight):
    """q of noise sampling: sum q c + lambda sum (q - p)^2 / p, q at most 1 / m."""

    def objective(q):
        return q @ cost + bias_weight * np.sum((q - share) ** 2 / share)

    def gradient(q):
        return cost + 2 * bias_weight * (q - share) / share

    return solved(objective, gradient, np.full(len(cost), 1 / len(cost)), 1 / m)


def unbiased(cost, share, m):
    """pi of noise sampling: sum p^2 c / pi, pi at most 1."""
    scale = np.mean(share**2 * cost)

    def objective(pi):
        return np.sum(share**2 * cost / pi) / scale

    def gradient(pi):
        return -(share**2) * cost / pi**2 / scale

    return solved(objective, gradient, np.full(len(cost), m / len(cost)), 1.0, total=m)


def ratios(noise, share, size, m):
    """r_g of budget groups: sum w_g^2 nu_g / (r_g n_g) with sum r_g n_g = m, r_g at most 1."""
    cost = share**2 * noise / size
    cost = cost / cost.mean()
    start = np.full(len(size), m / size.sum())
    return solved(lambda r: np.sum(cost / r), lambda r: -cost / r**2, start, 1.0, size, m)


class Account:
    """What noise sampling knows of each client: releases and the square of its update."""

    def __init__(self, num_clients, noise_power, step):
        self.noise_power, self.step = noise_power, step
        self.counts = [0] * num_clients
        self.square = [None] * num_clients

    def costs(self):
        known = [s for s in self.square if s is not None]
        mean = sum(known) / len(known) if known else 0.0
        noise = [self.noise_power(k, n) for k, n in enumerate(self.counts)]
        return [n + (mean if s is None else s) for s, n in zip(self.square, noise, strict=True)]

    def tell(self, clients, updates, received):
        for k, update, arrived in zip(clients, updates, received, strict=True):
            if arrived:
                square = sum(x * x for x in update) - self.noise_power(k, self.counts[k])
                square, old = max(square, 0.0), self.square[k]
                self.square[k] = square if old is None else old + self.step * (square - old)
            self.counts[k] += 1
