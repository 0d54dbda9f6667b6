"""What a cohort does in a round: local training side by side, release of updates, aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

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
        noisy_inputs=learning.partition.min_quality < 1,
    )


def num_samples(learning: Learning, data: Dataset) -> int:
    """Training samples in use."""
    return learning.data.num_train or int(data.y_train.shape[0])


def max_size(learning: Learning, data: Dataset, num_clients: int) -> int:
    """Bound on the number of samples of a client."""
    return learning.partition.max_size(num_samples(learning, data), num_clients)


def keys_of(stream: Array, round: Array, clients: Array) -> Array:
    """A key for each client, from the stream, the round and the client's number."""
    of_round = jax.random.fold_in(stream, round)
    return jax.vmap(lambda client: jax.random.fold_in(of_round, client))(clients)


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

    Returns:
      The new model, the optimiser states, the losses and what was released.
    """
    active, keep = weights > 0, opt_state is not None
    if keep:
        own_state = jax.tree.map(lambda x: x[clients], opt_state)
    else:
        own_state = training.optimizer.init(variables["params"])
    num_steps: Array | int
    if training.equal_steps is None:
        steps = local_steps(training, partition.size[clients])
        num_steps = jnp.max(jnp.where(active, steps, 0))
    else:
        num_steps = training.equal_steps
    train = jax.vmap(
        train_locally, in_axes=(None, None, 0 if keep else None, None, 0, 0, None, None)
    )
    updates, own_state, loss = train(
        training,
        variables,
        own_state,
        partition,
        clients,
        keys.training,
        keys.inputs,
        num_steps,
    )

    _, unravel = ravel_pytree(variables["params"])
    flat = jax.vmap(lambda update: ravel_pytree(update)[0])(updates["params"])
    # Nothing is released at an epsilon of 0, and nothing is heard from an empty slot.
    released = jax.vmap(privacy.privatize)(keys.privacy, flat, jnp.where(active, epsilon, 1.0))
    released = jnp.where(active[:, None], released, 0.0)
    loss = jax.tree.map(lambda x: jnp.where(active, x, 0.0), loss)
    # Running statistics, if the model has any, leave in the clear: Result.unnoised names them.
    updates = {**updates, "params": jax.vmap(unravel)(released)}
    if keep:

        def store(old: Array, new: Array) -> Array:
            took_part = active.reshape(-1, *[1] * (new.ndim - 1))
            return old.at[clients].set(jnp.where(took_part, new, old[clients]))

        opt_state = jax.tree.map(store, opt_state, own_state)
    return Trained(aggregate(variables, updates, weights), opt_state, loss, released)


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

    return jax.lax.map(one, (clients, keys), batch_size=QUERY_BATCH)
