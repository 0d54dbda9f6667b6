"""What the server does with a model: average the updates, and evaluate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.learning.dataset import Dataset
from pause_jax.learning.learner import Variables, all_finite
from pause_jax.learning.network import Network
from pause_jax.learning.task import Task, metrics_of

EVAL_CHUNK = 1000


def mean_update(updates: Array, weights: Array) -> Array:
    """The weighted sum of one leaf's updates [m, ...], of slots with a weight > 0.

    An empty slot's update does not reach the sum even if it is not finite.
    """
    taken = jnp.where(weights.reshape(-1, *[1] * (updates.ndim - 1)) > 0, updates, 0.0)
    return jnp.tensordot(weights, taken, axes=1)


def added(variables: Variables, mean: Variables) -> Variables:
    """The global model with the weighted sum of the updates added: FedAvg, (2)."""
    return jax.tree.map(lambda old, move: (old + move).astype(old.dtype), variables, mean)


def evaluate(
    network: Network, task: Task, variables: Variables, dataset: Dataset
) -> dict[str, Array]:
    """Mean loss and scores on the whole test set, in chunks that bound the memory.

    Args:
      network: the model's functions.
      task: what it is for.
      variables: the model.
      dataset: its test set is used.

    Returns:
      Scalars by name: ``test_loss`` and the task's scores, which are NaN for a model that is not
      finite (its arg max would mean nothing).
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
