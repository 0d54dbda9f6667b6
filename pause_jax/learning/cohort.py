"""The clients of a cohort side by side: in batches that fit the memory, over devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from pause_jax.base.memory import tree_bytes
from pause_jax.learning.client import LocalTraining
from pause_jax.learning.learner import Variables, trained_part

# Bytes that clients who train side by side may keep together. A CPU is fastest while training stays
# in the cache; elsewhere the bound is there for the memory. Measured: docs/engineering_log.md.
CPU_BYTES = 16 * 2**20
ACCELERATOR_BYTES = 2**30

# (one slot, bound on its steps or None for its own number) -> what the slot returns.
Train = Callable[[Any, Array | None], Any]


class Execution(NamedTuple):
    """How a cohort is trained: no part of what a result means. Results are equal up to rounding.

    Attributes:
      client_batch: clients side by side at most; 1 trains one after another. None leaves it to the
        memory that one client keeps.
      mesh: devices that share a cohort, with the one axis ``client``; one device if None.
      precision: of products in the clients' training, as in ``jax.default_matmul_precision``; None
        for the device's own. All other products have that of float32.
    """

    client_batch: int | None = None
    mesh: Mesh | None = None
    precision: str | None = None


def clients_that_fit(client_bytes: int) -> int:
    """Return how many clients of this size train side by side, at least 1."""
    available = CPU_BYTES if jax.default_backend() == "cpu" else ACCELERATOR_BYTES
    return max(1, available // client_bytes)


def training_bytes(training: LocalTraining, variables: Variables) -> int:
    """Return the bytes of a client in training.

    They are its model, gradient and optimiser state, and for the gradient of a step what the
    model's layers remember of a batch.
    """
    batch = training.batch_size
    sample = training.dataset.sample
    x = jax.ShapeDtypeStruct((batch, *sample.shape), sample.dtype)
    key = jax.random.key(0) if training.network.draws else None

    def one(variables: Variables, x: Array) -> Any:
        def outputs(trainable: Any) -> Any:
            whole = {**variables, **trainable}
            return training.network.train(whole, x, jnp.ones(batch, bool), key)[0]

        gradient = trained_part(variables)
        remembered = jax.vjp(outputs, gradient)[1]
        return variables, gradient, training.optimizer.init(gradient), remembered

    return tree_bytes(jax.eval_shape(one, variables, x))


def map_clients(
    train: Train, slots: Any, steps: Array | None, batch: int, mesh: Mesh | None = None
) -> Any:
    """Return what ``train`` returns for every slot of the cohort, leaves [m, ...].

    Clients side by side step together, so a batch makes as many steps as its longest client.
    ``steps`` is 0 for a slot that does not take part, and None if all are equal.
    """

    def train_all(work: tuple[Any, Array | None]) -> Any:
        return _in_batches(train, *work, batch)

    if mesh is None:
        return train_all((slots, steps))
    return _over_client_devices(mesh, train_all, slots, steps)


def _in_batches(train: Train, slots: Any, steps: Array | None, batch: int) -> Any:
    num_slots = jax.tree.leaves(slots)[0].shape[0]
    if batch == 1:
        return lax.map(lambda slot: train(slot, None), slots)

    def side_by_side(work: tuple[Any, Array | None]) -> Any:
        slots, steps = work
        bound = None if steps is None else jnp.max(steps)
        return jax.vmap(train, in_axes=(0, None))(slots, bound)

    # Batches of equal size, so that one program serves all; the last one repeats a slot.
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


def _over_client_devices(
    mesh: Mesh, train_all: Callable[[Any], Any], slots: Any, steps: Array | None
) -> Any:
    """``train_all`` with the same number of slots on each device; the last may hold idle ones."""
    num_slots = jax.tree.leaves(slots)[0].shape[0]
    place = jnp.arange(-(-num_slots // mesh.size) * mesh.size)
    padded = jax.tree.map(lambda x: x[jnp.minimum(place, num_slots - 1)], (slots, steps))
    if steps is not None:
        padded = (padded[0], jnp.where(place < num_slots, padded[1], 0))
    spec = PartitionSpec("client")
    spread = jax.shard_map(train_all, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.tree.map(lambda x: x[:num_slots], spread(padded))
