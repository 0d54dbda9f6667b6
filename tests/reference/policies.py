"""Slow oracles of the selection policies, in plain Python, written from the published rules."""

import math

import numpy as np


class CsUcb:
    """CS-UCB: reward 1 - min(tau, tau_max) / tau_max, the m largest mean + sqrt((m+1) ln t / T)."""

    def __init__(self, num_clients, m, max_latency=1.0):
        self.m, self.max_latency = m, max_latency
        self.mean = [0.0] * num_clients
        self.count = [0] * num_clients

    def scores(self, t):
        return [
            y + math.sqrt((self.m + 1) * math.log(t) / n) if n else math.inf
            for y, n in zip(self.mean, self.count, strict=True)
        ]

    def update(self, clients, latency):
        for k, tau in zip(clients, latency, strict=True):
            reward = 1 - min(tau, self.max_latency) / self.max_latency
            self.mean[k] = (self.mean[k] * self.count[k] + reward) / (self.count[k] + 1)
            self.count[k] += 1


class CsUcbQ(CsUcb):
    """CS-UCB-Q: the queue is updated before the choice, the bound is cut at 1 from above."""

    def __init__(self, sizes, m, beta=0.5, phi=0.5, max_latency=1.0):
        super().__init__(len(sizes), m, max_latency)
        self.beta = beta
        self.target = [phi * m * n / sum(sizes) for n in sizes]
        self.queue = [0.0] * len(sizes)
        self.last = [0] * len(sizes)

    def scores(self, t):
        self.queue = [
            max(d + c - b, 0.0) for d, c, b in zip(self.queue, self.target, self.last, strict=True)
        ]
        out = []
        for y, n, d in zip(self.mean, self.count, self.queue, strict=True):
            bound = min(y + math.sqrt(2 * math.log(t) / n), 1.0) if n else 1.0
            out.append((1 - self.beta) * bound + self.beta * d)
        return out

    def update(self, clients, latency):
        super().update(clients, latency)
        self.last = [int(k in set(clients)) for k in range(len(self.last))]


def poured_bins(sizes, m):
    """Clustered sampling, Algorithm 1, by pouring integers into bins: [m, K] probabilities."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    capacity = sum(sizes)
    bins = np.zeros((m, len(sizes)))
    k, room = 0, capacity
    for i in order:
        mass = m * sizes[i]
        while mass:
            poured = min(mass, room)
            bins[k, i] += poured
            mass -= poured
            room -= poured
            if room == 0:
                k, room = k + 1, capacity
    return bins / capacity
