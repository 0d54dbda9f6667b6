"""Exact search as a walk down the clients sorted by index, with a heap of the m largest weights."""

import heapq
import math

import numpy as np


def best_set(index, weight, num_selected, available):
    """The best (value, sum of weights), and the clients, ties by number; floats add in float64."""
    index, weight = np.asarray(index, float).tolist(), np.asarray(weight, float).tolist()
    order = sorted((k for k, usable in enumerate(available) if usable), key=lambda k: -index[k])
    heap, total, best = list[float](), 0.0, (-math.inf, -math.inf)
    end = None
    for place, client in enumerate(order):
        added = weight[client]
        if place < num_selected:
            heapq.heappush(heap, added)
            total += added
        else:
            total += added - heapq.heappushpop(heap, added)
        if place >= num_selected - 1:
            value = (index[client] + total, total)
            if end is None or value > best:
                best, end = value, place
    if end is None:
        return best, None
    # A stable sort: of equal weights the first in the order.
    inside = sorted(order[: end + 1], key=lambda k: -weight[k])
    return best, sorted(inside[:num_selected])
