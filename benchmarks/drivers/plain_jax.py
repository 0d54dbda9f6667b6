"""Driver of plain JAX: vmap over clients and scan over steps, as a JAX user writes in an afternoon.

Variants: ``drjax`` maps, broadcasts and averages by DrJAX instead of vmap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from benchmarks.drivers.protocol import serve
from benchmarks.workloads import Weights, Workload, read_data, read_weights

OPTIMIZERS = {"adam": optax.adam, "sgd": optax.sgd}


def network(layers: tuple[tuple[str, int], ...], weights: Any, x: Array) -> Array:
    """Compute the outputs [B, classes] of a workload's network for inputs [B, h, w, c]."""
    pairs = iter(weights)
    for index, (kind, size) in enumerate(layers):
        if kind == "pool":
            window = (1, size, size, 1)
            x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
            continue
        kernel, bias = next(pairs)
        if kind == "norm":
            axes = tuple(range(x.ndim - 1))
            x = (x - x.mean(axes)) * lax.rsqrt(x.var(axes) + 1e-5) * kernel + bias
            continue
        if kind == "conv":
            how = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=how)
        else:
            x = x.reshape(len(x), -1) @ kernel
        x = x + bias
        if index < len(layers) - 1:
            x = jax.nn.relu(x)
    return x


def local_training(workload: Workload, weights: Any, x: Array, y: Array, key: Array) -> Any:
    """Train for all epochs on a client's samples; an epoch's last batch may be smaller."""
    optimizer = OPTIMIZERS[workload.optimizer](workload.learning_rate)
    padding = -workload.samples % workload.batch

    def order(key: Array) -> Array:
        rows = jax.random.permutation(key, workload.samples)
        return jnp.pad(rows, (0, padding), constant_values=-1)

    def loss(weights: Any, rows: Array) -> Array:
        outputs = network(workload.layers, weights, x[rows] / 127.5 - 1)
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs, y[rows])
        return jnp.mean(losses, where=rows >= 0)

    def step(carry: Any, rows: Array) -> tuple[Any, None]:
        weights, state = carry
        updates, state = optimizer.update(jax.grad(loss)(weights, rows), state)
        return (optax.apply_updates(weights, updates), state), None

    orders = jax.vmap(order)(jax.random.split(key, workload.epochs))
    rows = orders.reshape(workload.steps, workload.batch)
    (trained, _), _ = lax.scan(step, (weights, optimizer.init(weights)), rows)
    return trained


def by_vmap(train: Callable[..., Any], weights: Any, *of_clients: Array) -> Any:
    """Train clients side by side, and return the mean of their weights."""
    trained = jax.vmap(train, (None, *(0 for _ in of_clients)))(weights, *of_clients)
    return jax.tree.map(lambda leaf: leaf.mean(0), trained)


def by_drjax(train: Callable[..., Any], weights: Any, *of_clients: Array) -> Any:
    """Do the same with DrJAX."""
    import drjax

    @drjax.program(placements={"clients": len(of_clients[0])})
    def program(weights: Any, *of_clients: Array) -> Any:
        arguments = (drjax.broadcast(weights), *of_clients)
        return drjax.reduce_mean(drjax.map_fn(lambda each: train(*each), (arguments,)))

    return program(weights, *of_clients)


class PlainJax:
    """FedAvg with all rounds of a measurement in one program."""

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        self.device = jax.devices()[0].device_kind
        self.round, self.key = 0, jax.random.key(0)
        self.model = jax.tree.map(jnp.asarray, read_weights(weights))
        of_client = (workload.clients, workload.samples)
        self.x, self.y = (jnp.asarray(a.reshape(*of_client, *a.shape[1:])) for a in read_data(data))
        train = functools.partial(local_training, workload)
        average = {"": by_vmap, "drjax": by_drjax}[variant]

        def play(x: Array, y: Array, model: Any, number: Array) -> tuple[Any, None]:
            cohort = (number * workload.cohort + jnp.arange(workload.cohort)) % workload.clients
            own = jax.random.split(jax.random.fold_in(self.key, number), workload.cohort)
            return average(train, model, x[cohort], y[cohort], own), None

        @functools.partial(jax.jit, static_argnames="rounds")
        def run(model: Any, x: Array, y: Array, first: int, rounds: int) -> Any:
            return lax.scan(functools.partial(play, x, y), model, first + jnp.arange(rounds))[0]

        self._run = run

    def run(self, rounds: int) -> None:
        self.model = self._run(self.model, self.x, self.y, self.round, rounds)
        jax.block_until_ready(self.model)
        self.round += rounds

    def weights(self) -> Weights:
        return [(np.asarray(kernel), np.asarray(bias)) for kernel, bias in self.model]


if __name__ == "__main__":
    serve(PlainJax, "jax", "optax")
