"""FedCS in plain Python, from Algorithm 3 of the paper."""

import math


def schedule(clients, update, upload):
    """Theta: seconds until the last upload of an ordered cohort; uploads follow one another."""
    elapsed = 0.0
    for k in clients:
        elapsed += upload[k] + max(0.0, update[k] - elapsed)
    return elapsed


def greedy(candidates, update, upload, deadline, *, most=math.inf):
    """The accepted clients in order.

    Args:
      candidates: clients that answered.
      update, upload: t^UD and t^UL.
      deadline: T_round.
      most: accept so many at most.
    """
    left, accepted = set(candidates), list[int]()
    while left:
        elapsed = schedule(accepted, update, upload)
        gain = {k: 1 / (upload[k] + max(0.0, update[k] - elapsed)) for k in left}
        best = max(sorted(left), key=gain.get)
        left.remove(best)
        fits = schedule([*accepted, best], update, upload) < deadline
        if fits and len(accepted) < most:
            accepted.append(best)
    return accepted


def smallest_first(candidates, update, upload, deadline):
    """As many of the smallest total times as fit: no overlap of updates and uploads."""
    accepted: list[int] = []
    for k in sorted(candidates, key=lambda k: update[k] + upload[k]):
        if schedule([*accepted, k], update, upload) < deadline:
            accepted.append(k)
    return accepted
