"""What a cohort does in a round: local training side by side, release of updates, aggregation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec

from pause_jax.learning.client import (
    LocalLoss,
    LocalTraining,
    Variables,
    local_loss,
    local_steps,
    train_locally,
)
from pause_jax.learning.data import Dataset
from pause_jax.learning.partition import Partition
from pause_jax.learning.server import aggregate
from pause_jax.privacy import Mechanism

if TYPE_CHECKING:
    from pause_jax.config import Learning

# Clients whose losses are computed side by side; bounds the memory when many are asked.
QUERY_BATCH = 16
# What clients that train side by side may keep, in bytes. A CPU is fastest while it stays in the
# cache; elsewhere the bound is there for the memory.
KEPT_ON_CPU, KEPT_ELSEWHERE = 16 * 2**20, 2**30


class Trained(NamedTuple):
    """What a round of training leaves.

    Attributes:
      variables: the new global model; None without learning.
      opt_state: the clients' optimiser states [K, ...], or None if they start anew.
      loss: losses of the cohort, leaves [m]; zeros of an empty slot.
      released: float [m, d], flat updates as the server received them: clipped and noised; zeros
        from an empty slot.
    """

    variables: Variables | None
    opt_state: Any
    loss: LocalLoss
    released: Array


class ClientKeys(NamedTuple):
    """Keys of the cohort's clients in this round [m], and the fixed one of the input noise."""

    training: Array
    privacy: Array
    inputs: Array


def local_training(learning: Learning, data: Dataset, num_clients: int) -> LocalTraining:
    """The fixed parts of local training, from the config and its data set."""
    bound = max_size(learning, data, num_clients)
    max_samples = min(learning.max_steps * learning.batch_size, bound)
    make = {"adam": optax.adam, "sgd": optax.sgd}[learning.optimizer]
    return LocalTraining(
        module=learning.model.module(data.num_classes),
        optimizer=make(learning.learning_rate),
        dataset=data,
        batch_size=learning.batch_size,
        max_samples=max_samples,
        equal_steps=-(-max_samples // learning.batch_size) if learning.partition.equal else None,
        client_batch=learning.client_batch,
        noisy_inputs=learning.partition.min_quality < 1,
    )


def num_samples(learning: Learning, data: Dataset) -> int:
    """Training samples in use."""
    return learning.data.num_train or int(data.y_train.shape[0])


def max_size(learning: Learning, data: Dataset, num_clients: int) -> int:
    """Bound on the number of samples of a client."""
    return learning.partition.max_size(num_samples(learning, data), num_clients)


def train_cohort(
    training: LocalTraining,
    privacy: Mechanism,
    variables: Variables,
    opt_state: Any,
    partition: Partition,
    clients: Array,
    weights: Array,
    epsilon: Array,
    keys: ClientKeys,
    mesh: Mesh | None = None,
) -> Trained:
    """Local training of the cohort, release of its updates, aggregation.

    Args:
      training: the fixed parts.
      privacy: the mechanism that releases the updates.
      variables: the global model.
      opt_state: the clients' optimiser states [K, ...], or None to start anew.
      partition: who holds what.
      clients: int [m], distinct.
      weights: float [m], 0 for an empty slot.
      epsilon: float [m], budget of this participation.
      keys: of the clients.
      mesh: devices that share the training, one axis ``client``; one device if None.

    Returns:
      The new model, the optimiser states, the losses and what was released.
    """
    keep, fresh = opt_state is not None, training.optimizer.init(variables["params"])
    own_state = jax.tree.map(lambda x: x[clients], opt_state) if keep else None

    def train(slot: _Slot, num_steps: Array | int | None) -> tuple[Variables, Any, LocalLoss]:
        start = fresh if slot.opt_state is None else slot.opt_state
        update, state, loss = train_locally(
            training, variables, start, partition, slot.client, slot.key, keys.inputs, num_steps
        )
        return update, state if keep else None, loss

    slots = _Slot(clients, weights > 0, keys.training, own_state)
    batch = training.client_batch or client_batch(training, variables)

    def train_all(slots: _Slot) -> Any:
        return _map_clients(training, partition, batch, train, slots)

    updates, own_state, loss = train_all(slots) if mesh is None else _spread(mesh, train_all, slots)

    _, unravel = ravel_pytree(variables["params"])
    # Not inside the map: XLA fuses the concatenation into the write of the map's result, which
    # took most of the time of a round with 1.6 million parameters.
    flat = jax.vmap(lambda update: ravel_pytree(update)[0])(updates["params"])
    # Nothing is released at an epsilon of 0, and nothing is heard from an empty slot.
    released = jax.vmap(privacy.privatize)(
        keys.privacy, flat, jnp.where(slots.active, epsilon, 1.0)
    )
    released = jnp.where(slots.active[:, None], released, 0.0)
    loss = jax.tree.map(lambda x: jnp.where(slots.active, x, 0.0), loss)
    # Running statistics, if the model has any, leave in the clear: Result.unnoised names them.
    updates = {**updates, "params": jax.vmap(unravel)(released)}
    if keep:

        def store(old: Array, new: Array) -> Array:
            took_part = slots.active.reshape(-1, *[1] * (new.ndim - 1))
            return old.at[clients].set(jnp.where(took_part, new, old[clients]))

        opt_state = jax.tree.map(store, opt_state, own_state)
    return Trained(aggregate(variables, updates, weights), opt_state, loss, released)


class _Slot(NamedTuple):
    """What one slot of the cohort trains with; leaves [m, ...] for all of them."""

    client: Array
    active: Array
    key: Array
    opt_state: Any


def _spread(mesh: Mesh, train_all: Callable[[_Slot], Any], slots: _Slot) -> Any:
    """``train_all`` with the same number of slots on each device; the last may hold idle slots."""
    num_slots = slots.client.size
    place = jnp.arange(-(-num_slots // mesh.size) * mesh.size)
    padded = jax.tree.map(lambda x: x[jnp.minimum(place, num_slots - 1)], slots)
    padded = padded._replace(active=padded.active & (place < num_slots))
    spec = PartitionSpec("client")
    done = jax.shard_map(train_all, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(
        padded
    )
    return jax.tree.map(lambda x: x[:num_slots], done)


def _map_clients(
    training: LocalTraining,
    partition: Partition,
    batch: int,
    train: Callable[[_Slot, Array | int | None], Any],
    slots: _Slot,
) -> Any:
    """``train`` for every slot, ``batch`` of them side by side at most."""
    num_slots = slots.client.size
    if batch == 1:
        return lax.map(lambda slot: train(slot, training.equal_steps), slots)

    def side_by_side(slots: _Slot) -> Any:
        num_steps: Array | int | None = training.equal_steps
        if num_steps is None:
            steps = local_steps(training, partition.size[slots.client])
            num_steps = jnp.max(jnp.where(slots.active, steps, 0))
        return jax.vmap(train, in_axes=(0, None))(slots, num_steps)

    # Batches of equal size, so that one program serves all; the last may hold idle slots.
    num_batches = -(-num_slots // batch)
    if num_batches == 1:
        return side_by_side(slots)
    batch = -(-num_slots // num_batches)
    place = jnp.minimum(jnp.arange(num_batches * batch), num_slots - 1)
    padded = jax.tree.map(lambda x: x[place].reshape(num_batches, batch, *x.shape[1:]), slots)
    done = lax.map(side_by_side, padded)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num_slots], done)


def client_batch(training: LocalTraining, variables: Variables) -> int:
    """Clients to train side by side, at least 1: as many as the memory of one allows."""
    limit = KEPT_ON_CPU if jax.default_backend() == "cpu" else KEPT_ELSEWHERE
    return max(1, limit // kept_by_client(training, variables))


def kept_by_client(training: LocalTraining, variables: Variables) -> int:
    """Bytes that a client in training keeps: its model, gradient and optimiser state, and for the
    gradient of a step what the model's layers remember of a batch.
    """
    rest = {name: value for name, value in variables.items() if name != "params"}
    data, batch = training.dataset, training.batch_size
    x = jax.ShapeDtypeStruct((batch, *data.x_train.shape[1:]), jnp.float32)

    def one(variables: Variables, x: Array) -> Any:
        def outputs(params: Any) -> Any:
            return training.module.apply(
                {**variables, "params": params},
                x,
                train=True,
                mask=jnp.ones(batch, bool),
                mutable=list(rest),
            )[0]

        remembered = jax.vjp(outputs, variables["params"])[1]
        gradient = variables["params"]
        return variables, gradient, training.optimizer.init(gradient), remembered

    leaves = jax.tree.leaves(jax.eval_shape(one, variables, x))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def query_losses(
    training: LocalTraining,
    variables: Variables,
    partition: Partition,
    clients: Array,
    keys: Array,
    input_key: Array,
    batch_size: int | None,
    bound: int,
) -> Array:
    """Mean loss of the global model on the data of some clients, float [d].

    Args:
      training: the fixed parts.
      variables: the global model.
      partition: who holds what.
      clients: int [d].
      keys: of the clients, [d], for the mini-batches.
      input_key: of the input noise.
      batch_size: samples of a mini-batch; None for all local data.
      bound: on the number of samples of a client (static).
    """

    def one(inputs: tuple[Array, Array]) -> Array:
        client, key = inputs
        return local_loss(training, variables, partition, client, key, input_key, batch_size, bound)

    return lax.map(one, (clients, keys), batch_size=QUERY_BATCH)
