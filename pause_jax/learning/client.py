"""Local training of a single client, starting from the global model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, Key

from pause_jax.learning.dataset import Dataset
from pause_jax.learning.learner import Variables, trained_part
from pause_jax.learning.models import Network
from pause_jax.learning.partition import Partition
from pause_jax.learning.task import Task
from pause_jax.learning.work import LocalWork, Steps
from pause_jax.rng import draws

if TYPE_CHECKING:
    import optax


class LocalTraining(NamedTuple):
    """Settings for local training, shared by all clients."""

    network: Network
    task: Task
    optimizer: optax.GradientTransformation
    dataset: Dataset  # all samples, on the device
    work: LocalWork  # batch size and other settings that determine the number of steps
    largest: int  # upper bound on the number of samples per client (static)
    equal: bool  # whether all clients take the same number of steps (static)
    noisy_inputs: bool  # whether inputs are noisy (data quality below 1; static)
    proximal: Array | float | None = None  # FedProx's mu, a scalar; None for no proximal term
    normalised: bool = False  # whether updates are normalised for FedNova (static)

    @property
    def max_samples(self) -> int:
        """Maximum number of samples in one pass over a client's data."""
        return min(self.work.max_steps * self.work.batch_size, self.largest)


class Keys(NamedTuple):
    """Random keys for local training, shared by all clients."""

    order: Key[Array, ""]  # for sample order and dropout, new in every round
    inputs: Key[Array, ""]  # for noise in low-quality inputs, the same in every round


class Slot(NamedTuple):
    """Client and optimiser state of one cohort slot, or of all m slots if leaves are [m, ...]."""

    client: Int[Array, "*m"]  # client number
    opt_state: Any  # the client's optimiser state


class LocalLoss(NamedTuple):
    """A client's training losses, computed at the local weights before each step."""

    mean: Float[Array, ""]  # mini-batch loss, averaged over the steps
    square: Float[Array, ""]  # squared sample loss, averaged over the samples used


def train_locally(
    training: LocalTraining,
    variables: Variables,
    partition: Partition,
    slot: Slot,
    steps: Steps,
    keys: Keys,
    beside: Steps | None = None,
) -> tuple[Variables, optax.OptState, LocalLoss]:
    """Train one client and return its update h_k = local - global, optimiser state and losses.

    ``beside`` contains the step counts [n] of all clients in a batch, or is None if they are equal.
    Each pass takes as many steps as the longest pass in the batch. Extra steps have no effect.
    """
    import optax

    batch = training.work.batch_size
    size = partition.size[slot.client]
    used = jnp.minimum(size, training.max_samples)
    center = trained_part(variables)
    dropout = jax.random.fold_in(keys.order, slot.client) if training.network.draws else None

    def in_pass(of: Steps, number: Array) -> Array:
        """Return the number of steps in pass ``number`` (0, 1, ...)."""
        return jnp.clip(of.total - number * of.per_pass, 0, of.per_pass)

    def one_pass(number: Array, carry: Any) -> Any:
        samples = visiting_order(training, partition, slot.client, keys.order, number)
        own_steps = in_pass(steps, number)

        def step(i: Array, carry: Any) -> Any:
            variables, opt_state, total, total_square = carry
            rows = lax.dynamic_slice_in_dim(samples, i * batch, batch)
            is_sample = i * batch + jnp.arange(batch) < used
            if beside is not None:
                is_sample &= i < own_steps
            weight = is_sample.astype(jnp.float32)
            x, y = client_inputs(training, rows, partition.quality[slot.client], keys.inputs)
            place = number * steps.per_pass + i
            key = None if dropout is None else jax.random.fold_in(dropout, place)
            trainable = trained_part(variables)
            rest = {name: variables[name] for name in variables if name not in trainable}

            def loss_of(trainable: Any) -> Any:
                whole = {**trainable, **rest}
                outputs, changed = training.network.train(whole, x, weight > 0, key)
                loss = training.task.loss(outputs, y)
                mean = jnp.sum(weight * loss) / jnp.maximum(jnp.sum(weight), 1)
                return mean, (changed, jnp.sum(weight * jnp.square(loss)))

            gradient = jax.value_and_grad(loss_of, has_aux=True)
            (loss, (changed, square)), grads = gradient(trainable)
            if training.proximal is not None:  # the recorded losses exclude this term
                grads = jax.tree.map(
                    lambda grad, local, start: grad + training.proximal * (local - start),
                    grads, trainable, center,
                )  # fmt: skip
            moves, new_opt_state = training.optimizer.update(grads, opt_state, trainable)
            new = {**optax.apply_updates(trainable, moves), **changed}
            if beside is not None:
                counts = i < own_steps
                after, before = (new, new_opt_state), (variables, opt_state)
                new, new_opt_state = jax.tree.map(
                    lambda a, b: jnp.where(counts, a, b), after, before
                )
                loss = jnp.where(counts, loss, 0.0)
            return new, new_opt_state, total + loss, total_square + square

        stop = own_steps if beside is None else jnp.max(in_pass(beside, number))
        return lax.fori_loop(0, stop, step, carry)

    longest = steps if beside is None else beside
    passes = jnp.max(-(-longest.total // longest.per_pass))
    start = (variables, slot.opt_state, jnp.zeros(()), jnp.zeros(()))
    trained, opt_state, total, total_square = lax.fori_loop(0, passes, one_pass, start)
    seen = training.work.samples(size, steps)
    loss = LocalLoss(
        mean=total / jnp.asarray(steps.total, total.dtype),
        square=total_square / jnp.asarray(seen, total.dtype),
    )
    return jax.tree.map(jnp.subtract, trained, variables), opt_state, loss


def visiting_order(
    training: LocalTraining, partition: Partition, client: Array, key: Array, number: Array
) -> Array:
    """Return a client's sample indices, shuffled for pass ``number``, int [n].

    If the client has more than ``max_samples`` samples, the pass covers a cyclic window of its data
    that starts at a random position. n is ``max_samples``, rounded up to full batches.
    """
    size = partition.size[client]
    key = jax.random.clone(key)  # JAX's key checker does not know that passes use different keys
    key = jnp.where(number > 0, jax.random.fold_in(key, number), key)
    bits = draws.bits_of(key, client[None], 1 + training.max_samples)[0]
    window = draws.below(bits[0], size)
    # Positions beyond the client's last sample are sorted last.
    is_sample = jnp.arange(training.max_samples) < size
    bits = jnp.where(is_sample, bits[1:] >> 1, jnp.uint32(2**32 - 1))
    shuffled = jnp.pad(jnp.argsort(bits), (0, -training.max_samples % training.work.batch_size))
    return partition.order[partition.start[client] + (window + shuffled) % size]


def client_inputs(
    training: LocalTraining, rows: Array, quality: Array, input_key: Array
) -> tuple[Array, Array]:
    """Return the inputs and targets of the samples ``rows``, adding noise to low-quality inputs."""
    data = training.dataset
    x, y = data.to_input(data.x_train[rows]), data.y_train[rows]
    if training.noisy_inputs:
        # Sensor noise, the same in every round, with standard deviation (1 - q) / 4 * input_range.
        noise = draws.normal_from(draws.bits_of(input_key, rows, data.sample.size)).reshape(x.shape)
        input_range = 2.0 if data.pixel_max else 1.0
        x += noise * input_range * (1 - quality) / 4
    return x, y
