"""Oort's selector in plain Python, from the rules of the paper and its program."""

import math

import numpy as np


def quantile(values, q):
    """The q-quantile, linear between order statistics."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


class Oort:
    """Scores and the pacer; clients are explored until they first take part."""

    def __init__(self, prior, duration, *, clip, penalty, threshold, step, delta):
        self.prior, self.duration = list(prior), list(duration)
        self.clip, self.penalty, self.threshold = clip, penalty, threshold
        self.step, self.delta = step, delta
        self.utility, self.last = {}, {}
        self.exploited, self.round = [], 0

    def system_penalty(self, k):
        if self.threshold >= 100:
            return 1.0
        preferred = quantile(self.duration, self.threshold / 100)
        t = self.duration[k]
        return (preferred / t) ** self.penalty if t > preferred else 1.0

    def exploit_scores(self, round, eligible):
        """Score of each eligible client that has taken part."""
        reward = {k: self.utility.get(k, self.prior[k]) for k in eligible}
        positive = [u for u in reward.values() if u > 0]
        top = quantile(positive, self.clip)
        low = 0.999 * min(positive)
        spread = max(max(positive) - low, 1e-4)
        return {
            k: ((min(reward[k], top) - low) / spread + math.sqrt(0.1 * math.log(round) / last))
            * self.system_penalty(k)
            for k, last in self.last.items()
            if k in eligible
        }

    def explore_scores(self, eligible):
        return {k: self.prior[k] * self.system_penalty(k) for k in eligible if k not in self.last}

    def update(self, chosen, latency, square_loss):
        self.round += 1
        gains = []
        for k, tau, square in zip(chosen, latency, square_loss, strict=True):
            value = self.prior[k] * math.sqrt(square)
            if k in self.last:
                gains.append(value)
            self.utility[k], self.last[k], self.duration[k] = value, self.round, tau
        self.exploited.append(float(np.mean(gains)) if gains else 0.0)
        self.pace()

    def pace(self):
        if self.round < 2 * self.step or self.round % self.step:
            return
        before = sum(self.exploited[-2 * self.step : -self.step])
        now = sum(self.exploited[-self.step :])
        if abs(now - before) <= 0.1 * before:
            self.threshold = min(100, self.threshold + self.delta)
        elif abs(now - before) >= 5 * before:
            self.threshold = max(5, self.threshold - self.delta)
