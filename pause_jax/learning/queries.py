"""What a client answers when it is asked: the loss of the global model on its data."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from pause_jax.learning.client import LocalTraining, client_inputs
from pause_jax.learning.learner import Variables
from pause_jax.learning.partition import Partition
from pause_jax.rng import draws

# Samples whose loss is computed at a time when a client is asked for its loss on all its data.
QUERY_CHUNK = 256


def local_loss(
    training: LocalTraining,
    variables: Variables,
    partition: Partition,
    client: Array,
    bits: Array | None,
    input_key: Array,
    max_size: int,
) -> Array:
    """Mean loss of the global model on one client's data, a scalar: what Power-of-Choice asks for.

    ``bits`` uint32 [B] draw a mini-batch of B samples uniformly without replacement (all data if
    the client has fewer); None for all local data. ``input_key`` is as in training; ``max_size``
    bounds a client's number of samples (static).
    """
    size, start = partition.size[client], partition.start[client]

    def total(places: Array, valid: Array) -> Array:
        rows = partition.order[start + jnp.where(valid, places, 0)]
        x, y = client_inputs(training, rows, partition.quality[client], input_key)
        outputs = training.network.predict(variables, x)
        return jnp.sum(jnp.where(valid, training.task.loss(outputs, y), 0.0))

    if bits is not None and len(bits) < max_size:
        places = distinct_places(bits, size)
        mean = total(places, places >= 0)
        return mean / jnp.minimum(size, len(bits)).astype(mean.dtype)
    chunk = min(QUERY_CHUNK, max_size)

    def visit(i: Array, so_far: Array) -> Array:
        places = i * chunk + jnp.arange(chunk)
        return so_far + total(places, places < size)

    whole = lax.fori_loop(0, -(-size // chunk), visit, jnp.zeros(()))
    return whole / size.astype(whole.dtype)


def distinct_places(bits: Array, size: Array | int) -> Array:
    """A distinct place in [0, size) for each of some random words, uint32 [count]: together a
    uniform subset; -1 for what ``size`` lacks.

    Floyd's algorithm: no permutation of all places is needed. Returns int32 [count].
    """
    count = len(bits)

    def draw(i: Array, drawn: Array) -> Array:
        last = size - count + i
        place = draws.below(bits[i], jnp.maximum(last, 0) + 1)
        place = jnp.where(jnp.any(drawn == place), last, place)
        return drawn.at[i].set(jnp.where(last >= 0, place, -1).astype(drawn.dtype))

    return lax.fori_loop(0, count, draw, jnp.full(count, -1, jnp.int32))
