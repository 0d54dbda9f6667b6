"""Client side of learning: local training from the global model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.learning.dataset import Dataset
from pause_jax.learning.learner import Variables, trained_part
from pause_jax.learning.models import Network
from pause_jax.learning.partition import Partition
from pause_jax.learning.task import Task
from pause_jax.rng import draws

if TYPE_CHECKING:
    import optax
    from jaxtyping import Float, Int, Key, UInt32


class LocalTraining(NamedTuple):
    """Settings of local training that all clients share."""

    network: Network
    task: Task
    optimizer: optax.GradientTransformation
    dataset: Dataset  # all samples, on the device
    batch_size: int  # B, samples per step
    max_samples: int  # maximum samples per client and round (static)
    equal_steps: int | None  # steps per client if equal for all clients (static), else None
    noisy_inputs: bool  # whether clients see noisy inputs (data quality below 1; static)
    proximal: Array | float | None = None  # FedProx's mu, a scalar; None for no proximal term


class Slot(NamedTuple):
    """Training inputs of one slot of the cohort, or of all slots with leaves [m, ...]."""

    client: Int[Array, "*m"]  # client number
    bits: UInt32[Array, "*m bits"]  # 1 + max_samples random words for the sample order
    dropout: Key[Array, "*m"] | None  # dropout key; None if the model draws no random numbers
    opt_state: Any  # the client's optimiser state


class LocalLoss(NamedTuple):
    """Training losses of a client, at the local weights before each step."""

    mean: Float[Array, ""]  # mini-batch loss, averaged over the steps
    square: Float[Array, ""]  # squared sample loss, averaged over the samples used


def local_steps(training: LocalTraining, size: Array) -> Array | int:
    """Return the number of steps in one pass over min(size, max_samples) samples."""
    if training.equal_steps is not None:
        return training.equal_steps
    return -(-jnp.minimum(size, training.max_samples) // training.batch_size)


def train_locally(
    training: LocalTraining,
    variables: Variables,
    partition: Partition,
    slot: Slot,
    input_key: Array,
    bound: Array | int | None = None,
) -> tuple[Variables, optax.OptState, LocalLoss]:
    """Train one client for one pass over its data in a new random order.

    Clients trained side by side all run ``bound`` steps, at least as many as this client needs.
    Its surplus steps change nothing. ``input_key`` draws the noise of low-quality inputs, which is
    the same in every round. Returns the update h_k = local - global of every collection, the
    optimiser state and the losses.
    """
    batch = training.batch_size
    size = partition.size[slot.client]
    steps = local_steps(training, size)
    used = jnp.minimum(size, training.max_samples)
    samples = visiting_order(training, partition, slot.client, slot.bits)
    center = trained_part(variables)

    def step(i: Array, carry: Any) -> Any:
        variables, opt_state, total, total_square = carry
        rows = lax.dynamic_slice_in_dim(samples, i * batch, batch)
        weight = (i * batch + jnp.arange(batch) < used).astype(jnp.float32)
        x, y = client_inputs(training, rows, partition.quality[slot.client], input_key)
        key = None if slot.dropout is None else jax.random.fold_in(slot.dropout, i)
        new, new_opt_state, loss, square = _descend(
            training, variables, opt_state, x, y, weight, key, center
        )
        if bound is not None:
            counts = i < steps
            new, new_opt_state = jax.tree.map(
                lambda a, b: jnp.where(counts, a, b), (new, new_opt_state), (variables, opt_state)
            )
            loss = jnp.where(counts, loss, 0.0)
        return new, new_opt_state, total + loss, total_square + square

    start = (variables, slot.opt_state, jnp.zeros(()), jnp.zeros(()))
    stop = steps if bound is None else bound
    trained, opt_state, total, total_square = lax.fori_loop(0, stop, step, start)
    loss = LocalLoss(
        mean=total / jnp.asarray(steps, total.dtype),
        square=total_square / jnp.asarray(used, total.dtype),
    )
    return jax.tree.map(jnp.subtract, trained, variables), opt_state, loss


def visiting_order(
    training: LocalTraining, partition: Partition, client: Array, bits: Array
) -> Array:
    """Return the samples of a client's pass in random order, padded to whole batches.

    A client with more than ``max_samples`` samples uses a cyclic window of its data that starts at
    a random position. ``bits`` is as in :class:`Slot`. Returns int [n], where n is ``max_samples``
    rounded up to a multiple of the batch size.
    """
    size = partition.size[client]
    window = draws.below(bits[0], size)
    # Positions beyond the client's size sort last.
    is_sample = jnp.arange(training.max_samples) < size
    bits = jnp.where(is_sample, bits[1:] >> 1, jnp.uint32(2**32 - 1))
    shuffled = jnp.pad(jnp.argsort(bits), (0, -training.max_samples % training.batch_size))
    return partition.order[partition.start[client] + (window + shuffled) % size]


def _descend(
    training: LocalTraining,
    variables: Variables,
    opt_state: optax.OptState,
    x: Array,
    y: Array,
    weight: Array,
    key: Array | None,
    center: Variables,
) -> tuple[Variables, optax.OptState, Array, Array]:
    """Take one optimiser step on a mini-batch; rows with ``weight`` 0 are padding.

    The proximal term pulls towards ``center``, the trained part of the global model. The returned
    losses (mean, sum of squares) exclude the proximal term.
    """
    import optax

    trainable = trained_part(variables)
    rest = {name: value for name, value in variables.items() if name not in trainable}

    def loss_of(trainable: Any) -> Any:
        outputs, changed = training.network.train({**trainable, **rest}, x, weight > 0, key)
        loss = training.task.loss(outputs, y)
        mean = jnp.sum(weight * loss) / jnp.maximum(jnp.sum(weight), 1)
        return mean, (changed, jnp.sum(weight * jnp.square(loss)))

    (loss, (changed, square)), grads = jax.value_and_grad(loss_of, has_aux=True)(trainable)
    if training.proximal is not None:
        grads = jax.tree.map(
            lambda grad, local, start: grad + training.proximal * (local - start),
            grads, trainable, center,
        )  # fmt: skip
    moves, opt_state = training.optimizer.update(grads, opt_state, trainable)
    trainable = optax.apply_updates(trainable, moves)
    return {**trainable, **changed}, opt_state, loss, square


def client_inputs(
    training: LocalTraining, rows: Array, quality: Array, input_key: Array
) -> tuple[Array, Array]:
    """Return inputs and targets of the samples ``rows`` as their client sees them."""
    data = training.dataset
    x, y = data.to_input(data.x_train[rows]), data.y_train[rows]
    if training.noisy_inputs:
        # Sensor noise, fixed per sample: std is (1 - q) / 4 of the input range.
        noise = draws.normal_from(draws.bits_of(input_key, rows, data.sample.size)).reshape(x.shape)
        input_range = 2.0 if data.pixel_max else 1.0
        x += noise * input_range * (1 - quality) / 4
    return x, y
