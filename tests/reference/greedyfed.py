"""Shapley values from their definition, and along given permutations with truncation."""

import itertools
import math


def exact(value, size):
    """The mean over all orders of what each adds; ``value`` takes a frozenset."""
    worth = [0.0] * size
    for k in range(size):
        others = [i for i in range(size) if i != k]
        for number in range(size):
            share = 1 / size / math.comb(size - 1, number)
            for some in itertools.combinations(others, number):
                worth[k] += share * (value(frozenset(some) | {k}) - value(frozenset(some)))
    return worth


def along(value, orders, tolerance):
    """GTG: means over the orders; what follows a coalition worth as much as all adds nothing."""
    size = len(orders[0])
    first, last, worth = value(frozenset()), value(frozenset(range(size))), [0.0] * size
    if abs(last - first) < tolerance:
        return worth
    for order in orders:
        before = first
        for place, client in enumerate(order):
            if abs(last - before) < tolerance:
                break
            after = value(frozenset(order[: place + 1]))
            worth[client] += (after - before) / len(orders)
            before = after
    return worth
