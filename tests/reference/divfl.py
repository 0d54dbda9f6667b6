"""DivFL in plain Python: facility location on distances between updates."""

import itertools


def cost(distance, known, chosen):
    """The sum over known clients of the distance to the nearest chosen one."""
    return sum(min(distance[k][i] for i in chosen) for k in known)


def greedy(distance, known, among, count):
    """The greedy choice: each step takes whoever leaves the least cost."""
    chosen: list[int] = []
    while len(chosen) < min(count, len(among)):
        left = [i for i in among if i not in chosen]
        chosen.append(min(left, key=lambda i: cost(distance, known, [*chosen, i])))
    return chosen


def best(distance, known, among, count):
    """The least cost of any ``count`` clients."""
    return min(cost(distance, known, some) for some in itertools.combinations(among, count))


def shares(distance, known, chosen):
    """What part of the known and chosen clients each chosen one stands for, itself included."""
    near = dict.fromkeys(chosen, 1)
    for k in set(known) - set(chosen):
        near[min((i for i in chosen if i in known), key=lambda i: distance[k][i])] += 1
    return [near[i] / sum(near.values()) for i in chosen]
