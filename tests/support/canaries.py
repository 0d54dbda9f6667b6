"""Programs of the kinds that we compile, each with its result by NumPy in float64.

    python -m tests.support.canaries            all of them, as the process's XLA_FLAGS say
    python -m tests.support.canaries NAME ...   some

Prints each name before its program starts, as a bad compiler may end the process, and ends with
status 1 if a result is wrong. It needs JAX and NumPy alone: a version is tried before the rest is
installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# JAX 0.10 fails at sums over 3 in one vmap over 32,769 to some 40,000 clients, in the rows from
# 32,768 on: 0.10.2 with all reductions but argmax, in loops too, and 0.10.1 (without the flag that
# pause_jax sets) with max, min, mean and the plain sum. Nested vmaps came out right.
FEATURES = 3
CLIENTS: dict[str, tuple[int, ...]] = {
    "few": (2, 3, 7),  # configs, seeds, clients
    "many": (2, 3, 5_462),
    "one_vmap": (33_000,),
}
ROUNDS = 4


class Canary(NamedTuple):
    """A program and its right result.

    Attributes:
      program: arrays -> array.
      inputs: small whole numbers in float32, so sums and products of them are exact.
      expected: float64.
      tolerance: relative; 0 where float32 is exact.
    """

    program: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray
    tolerance: float = 0.0


def whole(*shape: int, seed: int = 0) -> np.ndarray:
    """Draw whole numbers from -8 to 8 [shape], float32."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def exact(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def over_clients(program: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """Map a program of (matrix, x) over clients in seeds in configs, with one matrix."""
    for _ in range(axes):
        program = jax.vmap(program, (None, 0))
    return program


# A reduction after a product, in JAX and in NumPy: [.., features] -> [..].
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "sum": (lambda y: jnp.sum(y**2), lambda y: (y**2).sum(-1), 0.0),
    "max": (jnp.max, lambda y: y.max(-1), 0.0),
    "mean": (jnp.mean, lambda y: y.mean(-1), 1e-5),
    "norm": (jnp.linalg.norm, lambda y: np.linalg.norm(y, axis=-1), 1e-5),
    "argmax": (jnp.argmax, lambda y: y.argmax(-1), 0.0),
}


def product(reduction: str, clients: str) -> Canary:
    """Multiply a matrix with each client's vector, then reduce; as in jax-ml/jax#39103."""
    reduced, expected, tolerance = REDUCTIONS[reduction]
    matrix, x = whole(3, FEATURES), whole(*CLIENTS[clients], FEATURES, seed=1)
    program = over_clients(lambda m, row: reduced(m @ row), x.ndim - 1)
    return Canary(program, (matrix, x), expected(exact(x) @ exact(matrix).T), tolerance)


def rounds_of_products(clients: str) -> Canary:
    """Sum squares of products over rounds, between which the clients' vectors move."""
    matrix, x = whole(3, FEATURES), whole(*CLIENTS[clients], FEATURES, seed=1)
    squares = over_clients(lambda m, row: jnp.sum((m @ row) ** 2), x.ndim - 1)

    def program(matrix: jax.Array, x: jax.Array) -> jax.Array:
        sizes = jax.lax.scan(lambda x, _: (x + 1, squares(matrix, x)), x, None, length=ROUNDS)[1]
        return jnp.sum(sizes, axis=0)

    expected = sum((((exact(x) + t) @ exact(matrix).T) ** 2).sum(-1) for t in range(ROUNDS))
    return Canary(program, (matrix, x), exact(expected))


def gradient(clients: int, shared: bool) -> Canary:
    """Differentiate the squared loss of a dense layer for each client on its samples.

    Clients share the weights as at the start of local training, or have their own as within it.
    """
    samples, outputs = 4, 2
    weights = whole(*(() if shared else (clients,)), FEATURES, outputs)
    x, y = whole(clients, samples, FEATURES, seed=1), whole(clients, samples, outputs, seed=2)

    def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(jnp.sum((x @ weights - y) ** 2, axis=-1))

    program = jax.vmap(jax.grad(loss), (None if shared else 0, 0, 0))
    residual = exact(x) @ exact(weights) - exact(y)
    expected = 2 / samples * np.swapaxes(exact(x), 1, 2) @ residual
    return Canary(program, (weights, x, y), expected, 1e-5)


def hidden(clients: int) -> Canary:
    """Differentiate the squared loss by the first layer, behind a hidden layer with relu."""
    samples, width = 4, 5
    first, second = whole(FEATURES, width), whole(width, 2, seed=3)
    x, y = whole(clients, samples, FEATURES, seed=1), whole(clients, samples, 2, seed=2)

    def loss(first: jax.Array, second: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ first) @ second - y) ** 2)

    program = jax.vmap(jax.grad(loss), (None, None, 0, 0))
    before = exact(x) @ exact(first)
    residual = np.maximum(before, 0) @ exact(second) - exact(y)
    back = 2 / (samples * 2) * (residual @ exact(second).T) * (before > 0)
    return Canary(program, (first, second, x, y), np.swapaxes(exact(x), 1, 2) @ back, 1e-5)


def average(clients: int, length: int) -> Canary:
    """Average the clipped updates of a cohort by weights, for each of three seeds."""
    weights, updates = np.abs(whole(3, clients)) + 1, whole(3, clients, length)

    def program(weights: jax.Array, updates: jax.Array) -> jax.Array:
        norms = jnp.linalg.norm(updates, axis=1, keepdims=True)
        clipped = updates * jnp.minimum(1, 2 / jnp.maximum(norms, 1e-6))
        return jnp.tensordot(weights / jnp.sum(weights), clipped, axes=1)

    norms = np.maximum(np.linalg.norm(exact(updates), axis=-1, keepdims=True), 1e-6)
    shares = exact(weights) / exact(weights).sum(-1, keepdims=True)
    expected = np.einsum("sk,skd->sd", shares, exact(updates) * np.minimum(1, 2 / norms))
    return Canary(jax.vmap(program), (weights, updates), expected, 1e-5)


def cohorts(clients: int, selected: int) -> Canary:
    """Return least index and sums of weights of a cohort, over seeds and configs."""
    index, weight = whole(2, 3, clients), whole(2, 3, clients, seed=1)
    order = np.argsort(np.random.default_rng(2).random(index.shape))
    chosen = order[..., :selected].astype(np.int32)

    def program(index: jax.Array, weight: jax.Array, chosen: jax.Array) -> jax.Array:
        least, taken = jnp.min(index[chosen]), jnp.sum(weight[chosen])
        best = jnp.sum(jax.lax.top_k(weight, selected)[0])
        return jnp.append(jnp.cumsum(weight), jnp.stack([least, taken, best]))

    least = np.take_along_axis(exact(index), chosen, -1).min(-1)
    taken = np.take_along_axis(exact(weight), chosen, -1).sum(-1)
    best = np.sort(exact(weight))[..., -selected:].sum(-1)
    sums = np.stack([least, taken, best], axis=-1)
    expected = np.append(exact(weight).cumsum(-1), sums, axis=-1)
    return Canary(jax.vmap(jax.vmap(program)), (index, weight, chosen), expected)


def compensated(terms: int) -> Canary:
    """Sum with compensation (Knuth), which is lost if additions are reordered."""
    term = np.asarray([0.1, 0.3, 1e-3, 3333.3], np.float32)

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
    """Multiply and reduce arrays of many axes: 0.10.2 ends the process (jax-ml/jax#39257)."""
    a, b = whole(*shape), whole(*shape, seed=1)
    return Canary(lambda a, b: jnp.sum(a * b, axis=3), (a, b), (exact(a) * exact(b)).sum(3))


CANARIES: dict[str, Callable[[], Canary]] = {
    **{f"{r}_{c}": partial(product, r, c) for r in REDUCTIONS for c in CLIENTS},
    **{f"rounds_{c}": partial(rounds_of_products, c) for c in CLIENTS},
    **{
        f"gradient_{'shared' if shared else 'own'}_{clients}": partial(gradient, clients, shared)
        for shared in (True, False)
        for clients in (5, 33_000)
    },
    "hidden": partial(hidden, 33_000),
    "average_long": partial(average, 5, 2_778),
    "average_many": partial(average, 33_000, FEATURES),
    "cohorts": partial(cohorts, 30, 5),
    "cohorts_many": partial(cohorts, 5_462, 25),
    "compensated": partial(compensated, 10**6),
    # The last one, as it ends the process of a bad compiler.
    "seven_axes": partial(many_axes, 3, 1, 2, 2, 8, 8, 8),
}


def error(canary: Canary) -> float:
    """Return the largest error of the compiled program, relative to the largest value."""
    found = exact(jax.jit(canary.program)(*canary.inputs))
    return float(np.max(np.abs(found - canary.expected)) / np.max(np.abs(canary.expected)))


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
