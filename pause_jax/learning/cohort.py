"""Cohort training in batches of clients that fit in memory, on one or more devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from pause_jax.base.memory import tree_bytes
from pause_jax.learning.client import LocalTraining
from pause_jax.learning.learner import Variables, sent_part, trained_part
from pause_jax.learning.work import Steps

# Maximum memory in bytes for clients trained in parallel. On a CPU, training is fastest if the
# working set fits in the cache. See docs/engineering_log.md.
CPU_BYTES = 16 * 2**20
ACCELERATOR_BYTES = 2**30

# Maps a slot and the step counts of its batch (see ``train_locally``) to a training result.
Train = Callable[[Any, Steps | None], Any]


class Execution(NamedTuple):
    """Execution options for cohort training, which affect results only through rounding errors.

    Attributes:
      client_batch: maximum number of clients trained in parallel on a device; None for the largest
        number that fits in ``CPU_BYTES`` or ``ACCELERATOR_BYTES``.
      mesh: device mesh whose ``client`` axis divides a cohort among devices; None for one device.
      precision: precision of matrix products in the clients' training, as in
        ``jax.default_matmul_precision``; None for the device's default. All other matrix
        products use ``highest`` precision.
    """

    client_batch: int | None = None
    mesh: Mesh | None = None
    precision: str | None = None


def clients_that_fit(client_bytes: int) -> int:
    """Return the number of clients to train in parallel if each needs ``client_bytes``."""
    available = CPU_BYTES if jax.default_backend() == "cpu" else ACCELERATOR_BYTES
    return max(1, available // client_bytes)


def training_bytes(training: LocalTraining, variables: Variables) -> int:
    """Return the memory in bytes needed to train one client, excluding frozen weights."""
    batch = training.work.batch_size
    sample = training.dataset.sample
    x = jax.ShapeDtypeStruct((batch, *sample.shape), sample.dtype)
    key = jax.random.key(0) if training.network.draws else None

    def one(variables: Variables, x: Array) -> Any:
        def outputs(trainable: Any) -> Any:
            whole = {**variables, **trainable}
            return training.network.train(whole, x, jnp.ones(batch, bool), key)[0]

        gradient = trained_part(variables)
        remembered = jax.vjp(outputs, gradient)[1]
        return sent_part(variables), gradient, training.optimizer.init(gradient), remembered

    return tree_bytes(jax.eval_shape(one, variables, x))


def map_clients(
    train: Train, slots: Any, steps: Steps | None, batch: int, mesh: Mesh | None = None
) -> Any:
    """Map ``train`` over a cohort's slots and return the results, with leaves [m, ...].

    ``steps`` contains the slots' step counts [m], or is None if all slots have the same counts.
    For an empty slot, ``steps.total`` is 0.
    """

    def train_all(work: tuple[Any, Steps | None]) -> Any:
        return _in_batches(train, *work, batch)

    if mesh is None:
        return train_all((slots, steps))
    # Pad the cohort with copies of its last slot to give all devices the same number of slots.
    num_slots = jax.tree.leaves(slots)[0].shape[0]
    place = jnp.arange(-(-num_slots // mesh.size) * mesh.size)
    padded = jax.tree.map(lambda x: x[jnp.minimum(place, num_slots - 1)], (slots, steps))
    if steps is not None:
        total = jnp.where(place < num_slots, padded[1].total, 0)
        padded = (padded[0], padded[1]._replace(total=total))
    spec = PartitionSpec("client")
    spread = jax.shard_map(train_all, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.tree.map(lambda x: x[:num_slots], spread(padded))


def _in_batches(train: Train, slots: Any, steps: Steps | None, batch: int) -> Any:
    num_slots = jax.tree.leaves(slots)[0].shape[0]
    if batch == 1:
        return lax.map(lambda slot: train(slot, None), slots)

    def side_by_side(work: tuple[Any, Steps | None]) -> Any:
        return jax.vmap(train, in_axes=(0, None))(*work)

    # Pad the last batch with copies of the last slot.
    num_batches = -(-num_slots // batch)
    if num_batches == 1:
        return side_by_side((slots, steps))
    batch = -(-num_slots // num_batches)
    place = jnp.minimum(jnp.arange(num_batches * batch), num_slots - 1)
    padded = jax.tree.map(
        lambda x: x[place].reshape(num_batches, batch, *x.shape[1:]), (slots, steps)
    )
    done = lax.map(side_by_side, padded)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num_slots], done)
