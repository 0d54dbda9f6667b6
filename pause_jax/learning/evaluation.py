"""The server evaluates the global model on the test set."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from pause_jax.learning.dataset import Dataset
from pause_jax.learning.learner import Variables, all_finite
from pause_jax.learning.network import Network
from pause_jax.learning.task import Task, metrics_of

# Test samples that are evaluated at a time; bounds the memory.
EVAL_CHUNK = 1000


def evaluate(
    network: Network, task: Task, variables: Variables, dataset: Dataset
) -> dict[str, Array]:
    """Mean ``test_loss`` and scores of the task on the whole test set, scalars by name.

    In chunks that bound the memory. The scores of a model that is not finite are NaN, as its arg
    max would mean nothing.
    """
    num_test = dataset.x_test.shape[0]
    chunk = min(EVAL_CHUNK, num_test)
    num_chunks = -(-num_test // chunk)

    def visit(i: Array, sums: dict[str, Array]) -> dict[str, Array]:
        place = i * chunk + jnp.arange(chunk)
        weight = place < num_test
        rows = jnp.minimum(place, num_test - 1)
        outputs = network.predict(variables, dataset.to_input(dataset.x_test[rows]))
        targets = dataset.y_test[rows]
        each = {"test_loss": task.loss(outputs, targets), **task.scores(outputs, targets)}
        counted = {name: jnp.where(weight, jnp.asarray(each[name], float), 0.0) for name in sums}
        return {name: sums[name] + jnp.sum(counted[name]) for name in sums}

    zeros = dict.fromkeys(metrics_of(task), jnp.zeros(()))
    means = {
        name: total / num_test for name, total in lax.fori_loop(0, num_chunks, visit, zeros).items()
    }
    finite = all_finite(variables)
    return {
        name: mean if name == "test_loss" else jnp.where(finite, mean, jnp.nan)
        for name, mean in means.items()
    }
