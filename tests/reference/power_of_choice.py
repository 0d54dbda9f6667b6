"""Power-of-Choice in plain Python, and the errors of public implementations."""

import itertools

import numpy as np


def inclusion(weight, count):
    """Probability that each client is among ``count`` draws, each by weight among those left."""
    probability = np.zeros(len(weight))
    for order in itertools.permutations(range(len(weight)), count):
        left, chance = float(sum(weight)), 1.0
        for client in order:
            chance *= weight[client] / left
            left -= weight[client]
        probability[list(order)] += chance
    return probability


def largest(candidates, loss, m):
    """The m candidates of largest loss."""
    return set(sorted(candidates, key=lambda k: -loss[k])[:m])


def largest_by_position(candidates, loss, m, clients):
    """As in FLGo: positions of the sorted candidates' losses are used as places in all clients."""
    by_loss = np.argsort([-loss[k] for k in candidates])[:m]
    return {clients[place] for place in by_loss}


def softmax_losses(kernel, bias, x, y):
    """Cross entropy of an affine model for each sample, float64."""
    outputs = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64) + np.asarray(bias)
    outputs -= outputs.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(outputs).sum(axis=1))
    return log_sum - outputs[np.arange(len(y)), y]
