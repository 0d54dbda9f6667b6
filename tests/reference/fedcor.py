"""FedCor with whole covariance matrices in float64: likelihood, its fit by Adam, and the choice."""

import numpy as np

NOISE = 0.01


def covariance(x):
    """Sigma of all clients, from X [F, K]."""
    return x.T @ x + NOISE**2 * np.eye(x.shape[1])


def surprise(x, change, observed):
    """Minus the log density of the observed changes, with its constant."""
    who = np.flatnonzero(observed)
    sigma, y = covariance(x)[np.ix_(who, who)], change[who]
    log_det = np.linalg.slogdet(2 * np.pi * sigma)[1]
    return (y @ np.linalg.solve(sigma, y) + log_det) / 2


def gradient(x, change, observed):
    """Of ``surprise``: X (S^-1 - S^-1 y y^T S^-1) in the observed columns."""
    who = np.flatnonzero(observed)
    inverse = np.linalg.inv(covariance(x)[np.ix_(who, who)])
    solved = inverse @ change[who]
    found = np.zeros_like(x)
    found[:, who] = x[:, who] @ (inverse - np.outer(solved, solved))
    return found


def fitted(x, data, steps, rate):
    """X after some steps of Adam; ``data`` holds (weight, change, observed) of each round."""
    first, second = np.zeros_like(x), np.zeros_like(x)
    for t in range(1, steps + 1):
        slope = sum(weight * gradient(x, y, who) for weight, y, who in data)
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        step = (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        x = x - rate * step
    return x


def chosen(x, share, weight, among, count):
    """The greedy choice, each time with Sigma given all that were chosen before, from scratch."""
    sigma = covariance(x)
    found: list[int] = []
    while len(found) < min(count, len(among)):
        given = sigma
        if found:
            across = sigma[:, found]
            given = sigma - across @ np.linalg.solve(sigma[np.ix_(found, found)], across.T)
        left = [k for k in among if k not in found]
        found.append(
            max(left, key=lambda k: weight[k] * (share @ given[:, k]) / given[k, k] ** 0.5)
        )
    return found
