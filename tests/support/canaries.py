"""Programs of the kinds that we compile, each with its result by NumPy in float64.

    python -m tests.support.canaries            all of them, as the process's XLA_FLAGS say
    python -m tests.support.canaries NAME ...   some

It names each program before it starts, as a bad compiler may end the process, and ends with status
1 if a result is wrong. It needs JAX and NumPy alone: a version is tried before the rest is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Where 0.10 was seen to fail: sums over 3, in one vmap over 32,769 to some 40,000 clients, the rows
# from 32,768 on; 0.10.2 with all reductions but argmax, in scans and loops too, 0.10.1
# (without what pause_jax sets) with max, min, mean and the plain sum. Nested vmaps came out right.
FEATURES = 3
CLIENTS: dict[str, tuple[int, ...]] = {
    "few": (2, 3, 7),  # configs, seeds, clients
    "many": (2, 3, 5_462),
    "one_vmap": (33_000,),
}
ROUNDS = 4
LOOPS = ("scan", "fori")


class Canary(NamedTuple):
    """A program, and what it must give.

    Attributes:
      program: arrays -> arrays, compiled by ``wrong``.
      inputs: small whole numbers in float32, so sums and products of them are exact.
      expected: float64, as the program's result.
      tolerance: relative; 0 where float32 is exact.
    """

    program: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    expected: Any
    tolerance: float = 1e-5


def whole(*shape: int, seed: int = 0) -> np.ndarray:
    """Whole numbers from -8 to 8 [shape], float32."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def exact(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def over_clients(program: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """(matrix, x) -> program(matrix, client's x), over clients in seeds in configs."""
    for _ in range(axes):
        program = jax.vmap(program, (None, 0))
    return program


# What follows a product, in JAX and in NumPy: [.., features] -> [..].
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "sum": (lambda y: jnp.sum(y**2), lambda y: (y**2).sum(-1), 0.0),
    "max": (jnp.max, lambda y: y.max(-1), 0.0),
    "mean": (jnp.mean, lambda y: y.mean(-1), 1e-5),
    "norm": (jnp.linalg.norm, lambda y: np.linalg.norm(y, axis=-1), 1e-5),
    "argmax": (jnp.argmax, lambda y: y.argmax(-1), 0.0),
}


def issue(rows: int) -> Canary:
    """The program of jax-ml/jax#39103."""
    x = np.zeros((rows, FEATURES), np.float32)
    x[:, 0] = np.arange(rows)
    program = jax.vmap(lambda matrix, row: jnp.sum((matrix @ row) ** 2), (None, 0))
    return Canary(program, (np.eye(FEATURES, dtype=np.float32), x), exact(x[:, 0]) ** 2, 1e-6)


def product(reduction: str, clients: str) -> Canary:
    """A matrix times each client's vector, then a reduction."""
    ours, theirs, tolerance = REDUCTIONS[reduction]
    matrix, x = whole(3, FEATURES), whole(*CLIENTS[clients], FEATURES, seed=1)
    program = over_clients(lambda m, row: ours(m @ row), x.ndim - 1)
    return Canary(program, (matrix, x), theirs(exact(x) @ exact(matrix).T), tolerance)


def rounds_of_products(loop: str, clients: str) -> Canary:
    """The same in each of some rounds, between which the clients' vectors move."""
    matrix, x = whole(3, FEATURES), whole(*CLIENTS[clients], FEATURES, seed=1)
    squares = over_clients(lambda m, row: jnp.sum((m @ row) ** 2), x.ndim - 1)

    def scan(matrix: jax.Array, x: jax.Array) -> jax.Array:
        sizes = jax.lax.scan(lambda x, _: (x + 1, squares(matrix, x)), x, None, length=ROUNDS)[1]
        return jnp.sum(sizes, axis=0)

    def fori(matrix: jax.Array, x: jax.Array) -> jax.Array:
        def body(t: jax.Array, total: jax.Array) -> jax.Array:
            return total + squares(matrix, x + t)

        return jax.lax.fori_loop(0, ROUNDS, body, jnp.zeros(x.shape[:-1]))

    expected = sum((((exact(x) + t) @ exact(matrix).T) ** 2).sum(-1) for t in range(ROUNDS))
    return Canary({"scan": scan, "fori": fori}[loop], (matrix, x), expected, 0.0)


def dense(clients: int, own: bool) -> Canary:
    """Squared loss of a dense layer and its gradient, each client on its samples.

    ``own``: clients have weights of their own, as in the midst of local training.
    """
    samples, outputs = 4, 2
    weights = whole(*((clients,) if own else ()), FEATURES, outputs)
    x, y = whole(clients, samples, FEATURES, seed=1), whole(clients, samples, outputs, seed=2)

    def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(jnp.sum((x @ weights - y) ** 2, axis=-1))

    program = jax.vmap(jax.value_and_grad(loss), (0 if own else None, 0, 0))
    residual = exact(x) @ exact(weights) - exact(y)
    gradient = 2 / samples * np.swapaxes(exact(x), 1, 2) @ residual
    expected = (residual**2).sum(-1).mean(-1), gradient
    return Canary(program, (weights, x, y), expected)


def hidden(clients: int) -> Canary:
    """The same behind a hidden layer with relu: gradient of the first layer."""
    samples, width = 4, 5
    first, second = whole(FEATURES, width), whole(width, 2, seed=3)
    x, y = whole(clients, samples, FEATURES, seed=1), whole(clients, samples, 2, seed=2)

    def loss(first: jax.Array, second: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ first) @ second - y) ** 2)

    program = jax.vmap(jax.value_and_grad(loss), (None, None, 0, 0))
    before = exact(x) @ exact(first)
    residual = np.maximum(before, 0) @ exact(second) - exact(y)
    back = 2 / (samples * 2) * (residual @ exact(second).T) * (before > 0)
    expected = (residual**2).mean((1, 2)), np.swapaxes(exact(x), 1, 2) @ back
    return Canary(program, (first, second, x, y), expected)


def clipping(clients: int, length: int) -> Canary:
    """Each client's update, shortened to a norm of 2."""
    updates = whole(3, clients, length)
    program = jax.vmap(jax.vmap(lambda u: u * jnp.minimum(1, 2 / jnp.linalg.norm(u))))
    norms = np.linalg.norm(exact(updates), axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return Canary(program, (updates,), exact(updates) * np.minimum(1, 2 / norms))


def aggregation(clients: int, length: int) -> Canary:
    """The weighted mean of the updates and its norm, for each seed."""
    weights, updates = np.abs(whole(3, clients)) + 1, whole(3, clients, length)

    def program(weights: jax.Array, updates: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean = jnp.tensordot(weights / jnp.sum(weights), updates, axes=1)
        return mean, jnp.linalg.norm(mean)

    shares = exact(weights) / exact(weights).sum(-1, keepdims=True)
    mean = np.einsum("sk,skd->sd", shares, exact(updates))
    expected = mean, np.linalg.norm(mean, axis=-1)
    return Canary(jax.vmap(program), (weights, updates), expected)


def cohorts(clients: int, selected: int) -> Canary:
    """Least index and sums of weights of a cohort, over seeds and configs."""
    index, weight = whole(2, 3, clients), whole(2, 3, clients, seed=1)
    order = np.argsort(np.random.default_rng(2).random(index.shape))
    chosen = order[..., :selected].astype(np.int32)

    def program(index: jax.Array, weight: jax.Array, chosen: jax.Array) -> tuple[jax.Array, ...]:
        best = jnp.sum(jax.lax.top_k(weight, selected)[0])
        return jnp.min(index[chosen]), jnp.sum(weight[chosen]), best, jnp.cumsum(weight)

    taken = np.take_along_axis(exact(weight), chosen, -1).sum(-1)
    best = np.sort(exact(weight))[..., -selected:].sum(-1)
    least = np.take_along_axis(exact(index), chosen, -1).min(-1)
    expected = least, taken, best, exact(weight).cumsum(-1)
    return Canary(jax.vmap(jax.vmap(program)), (index, weight, chosen), expected, 0.0)


def compensated(terms: int, seeds: int) -> Canary:
    """A sum with what its rounding left out (Knuth): nothing remains if additions are reordered."""
    term = np.asarray([0.1, 0.3, 1e-3, 3333.3][:seeds], np.float32)

    def program(term: jax.Array) -> jax.Array:
        def body(_: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            total, rest = both
            rough = total + term
            of_term = rough - total
            rest = rest + ((total - (rough - of_term)) + (term - of_term))
            total = rough + rest
            return total, rest - (total - rough)

        return jax.lax.fori_loop(0, terms, body, (jnp.zeros(()), jnp.zeros(())))[0]

    return Canary(jax.vmap(program), (term,), exact(term) * terms, 2.0**-23)


def many_axes(*shape: int) -> Canary:
    """A product and a reduction of many axes: 0.10.2 ends the process (jax-ml/jax#39257)."""
    a, b = whole(*shape), whole(*shape, seed=1)
    return Canary(lambda a, b: jnp.sum(a * b, axis=3), (a, b), (exact(a) * exact(b)).sum(3), 0.0)


CANARIES: dict[str, Callable[[], Canary]] = {
    "issue_33": partial(issue, 33),
    "issue_32769": partial(issue, 32_769),
    **{f"{r}_{c}": partial(product, r, c) for r in REDUCTIONS for c in CLIENTS},
    **{f"{loop}_{c}": partial(rounds_of_products, loop, c) for loop in LOOPS for c in CLIENTS},
    "dense_shared": partial(dense, 5, own=False),
    "dense_own": partial(dense, 5, own=True),
    "dense_shared_many": partial(dense, 33_000, own=False),
    "dense_own_many": partial(dense, 33_000, own=True),
    "hidden": partial(hidden, 33_000),
    "clipping": partial(clipping, 5, 2_778),
    "clipping_many": partial(clipping, 33_000, FEATURES),
    "aggregation": partial(aggregation, 5, 2_778),
    "aggregation_many": partial(aggregation, FEATURES, 33_000),
    "cohorts": partial(cohorts, 30, 5),
    "cohorts_many": partial(cohorts, 5_462, 25),
    "compensated": partial(compensated, 10**6, 4),
    # The last one, as it ends the process of a compiler that is bad at it.
    "seven_axes": partial(many_axes, 3, 1, 2, 2, 8, 8, 8),
}


def error(canary: Canary) -> float:
    """The largest error of the compiled program, in parts of the largest value; NaN counts."""
    found = jax.tree.leaves(jax.jit(canary.program)(*canary.inputs))
    expected = jax.tree.leaves(canary.expected)
    errors = [
        np.max(np.abs(exact(np.asarray(f)) - e)) / np.max(np.abs(e))
        for f, e in zip(found, expected, strict=True)
    ]
    return float(np.max(errors))


def main(names: list[str]) -> int:
    failed = []
    for name in names or CANARIES:
        print(f"{name}: ", end="", flush=True)
        canary = CANARIES[name]()
        off = error(canary)
        right = off <= canary.tolerance
        print("ok" if right else f"WRONG by {off:.2g} of the largest value", flush=True)
        failed += [] if right else [name]
    print(f"JAX {jax.__version__}: {len(failed)} wrong {failed}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
