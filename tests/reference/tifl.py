"""TiFL's tiers, credits and probabilities in plain Python."""

import numpy as np
import scipy.stats


class Tifl:
    """State of the algorithm. ``latency`` [K], ``size`` [K], and the last losses of the tiers."""

    def __init__(self, latency, size, tiers, credits):
        groups = np.array_split(np.argsort(latency, kind="stable"), tiers)
        self.groups = [group.tolist() for group in sorted(groups, key=lambda g: latency[g[0]])]
        self.size, self.credits = size, [credits] * tiers
        self.weight, self.loss, self.tier = [1.0] * tiers, [np.inf] * tiers, 0

    def check(self, loss, reported):
        """Compare the losses [K] of clients that reported with those of the last check."""
        before, known = self.loss[self.tier], []
        for tier, group in enumerate(self.groups):
            heard = [k for k in group if reported[k]]
            if heard:
                known.append(tier)
                self.loss[tier] = np.average(loss[heard], weights=self.size[heard])
        if self.tier in known and np.isfinite(before) and self.loss[self.tier] >= before:
            usable = [tier for tier, left in enumerate(self.credits) if left > 0]
            places = scipy.stats.rankdata([self.loss[tier] for tier in usable])
            self.weight = [0.0] * len(self.groups)
            for tier, place in zip(usable, places, strict=True):
                self.weight[tier] = place

    def probabilities(self, available):
        here = [any(available[k] for k in group) for group in self.groups]
        weight = np.array(
            [w * (c > 0) * h for w, c, h in zip(self.weight, self.credits, here, strict=True)]
        )
        weight = weight if weight.any() else np.array(here, float)
        return weight / weight.sum()

    def choose(self, tier):
        self.tier = tier
        self.credits[tier] -= 1
