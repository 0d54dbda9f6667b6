"""Shapley values along given permutations with truncation."""


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
