"""What the server does with a model: average the updates, and evaluate."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.learning.client import losses
from pause_jax.learning.data import Dataset
from pause_jax.learning.learner import Variables, all_finite

EVAL_CHUNK = 1000


def aggregate(variables: Variables, updates: Any, weights: Array) -> Variables:
    """Add the weighted sum of the updates to the global model: FedAvg, (2).

    Args:
      variables: the global model.
      updates: the same structure with a leading axis [m].
      weights: float [m], zero for an empty slot.

    Returns:
      The new global model.
    """

    def add(old: Array, update: Array) -> Array:
        # An empty slot's update must not reach the sum even if it is not finite.
        taken = jnp.where(weights.reshape(-1, *[1] * (update.ndim - 1)) > 0, update, 0.0)
        return old + jnp.tensordot(weights, taken, axes=1)

    return jax.tree.map(add, variables, updates)


def evaluate(module: nn.Module, variables: Variables, dataset: Dataset) -> tuple[Array, Array]:
    """Loss and accuracy on the whole test set, in chunks that bound the memory.

    Args:
      module: the Flax module.
      variables: the model.
      dataset: its test set is used.

    Returns:
      (mean loss, accuracy in [0, 1]); accuracy is NaN for regression and for a model that is not
      finite, whose arg max would mean nothing.
    """
    num_test = dataset.x_test.shape[0]
    chunk = min(EVAL_CHUNK, num_test)
    num_chunks = -(-num_test // chunk)

    def visit(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        place = i * chunk + jnp.arange(chunk)
        weight = place < num_test
        rows = jnp.minimum(place, num_test - 1)
        outputs: Any = module.apply(variables, dataset.to_input(dataset.x_test[rows]))
        targets = dataset.y_test[rows]
        right = jnp.argmax(outputs, axis=-1) == targets
        loss = losses(dataset, outputs, targets)
        return sums[0] + jnp.sum(weight * loss), sums[1] + jnp.sum(weight & right)

    zero = jnp.zeros(())
    loss, right = lax.fori_loop(0, num_chunks, visit, (zero, zero))
    if dataset.task == "regression":
        right = jnp.full((), jnp.nan)
    right = jnp.where(all_finite(variables), right, jnp.nan)
    return loss / num_test, right / num_test
