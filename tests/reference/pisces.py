"""Pisces' scores in plain Python, from the rule of its program."""

import math


class Pisces:
    """Statistical utility over lag, of clients that have reported."""

    def __init__(self, samples, *, penalty, memory):
        self.samples, self.penalty, self.memory = list(samples), penalty, memory
        self.utility, self.lags = {}, {}

    def report(self, client, square_loss, staleness):
        self.utility[client] = self.samples[client] * math.sqrt(square_loss)
        self.lags.setdefault(client, []).append(staleness)

    def score(self, client):
        last = self.lags[client][-self.memory :]
        return self.utility[client] / (sum(last) / len(last) + 1) ** self.penalty

    def fresh(self, available):
        return [k for k in available if k not in self.utility]
