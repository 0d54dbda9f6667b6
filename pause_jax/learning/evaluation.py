"""Evaluation of the global model on the test set and on clients' data."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from pause_jax.learning.client import LocalTraining, client_inputs
from pause_jax.learning.dataset import Dataset
from pause_jax.learning.learner import LearnerState, Variables, all_finite
from pause_jax.learning.models import Network
from pause_jax.learning.partition import Partition
from pause_jax.learning.task import Task, metrics_of
from pause_jax.rng import draws

# Maximum number of test or held-out samples evaluated at once, to bound memory.
EVAL_CHUNK = 1000
# Maximum number of samples evaluated at once to compute a client's loss on all its data.
QUERY_CHUNK = 256


def evaluate(
    network: Network, task: Task, variables: Variables, dataset: Dataset, part: slice = slice(None)
) -> dict[str, Array]:
    """Compute the mean loss and task scores over ``part`` of the test set, keyed by name.

    If the model has non-finite entries, all task scores are NaN.
    """
    first, stop, _ = part.indices(dataset.x_test.shape[0])
    num_test = stop - first
    chunk = min(EVAL_CHUNK, num_test)
    num_chunks = -(-num_test // chunk)

    def visit(i: Array, sums: dict[str, Array]) -> dict[str, Array]:
        place = i * chunk + jnp.arange(first, first + chunk)
        weight = place < stop
        rows = jnp.minimum(place, stop - 1)
        outputs = network.predict(variables, dataset.to_input(dataset.x_test[rows]))
        targets = dataset.y_test[rows]
        each = {"test_loss": task.loss(outputs, targets), **task.scores(outputs, targets)}
        counted = {name: jnp.where(weight, jnp.asarray(each[name], float), 0.0) for name in sums}
        return {name: sums[name] + jnp.sum(counted[name]) for name in sums}

    zeros = dict.fromkeys(metrics_of(task), jnp.zeros(()))
    sums = lax.fori_loop(0, num_chunks, visit, zeros)
    means = {name: total / num_test for name, total in sums.items()}
    finite = all_finite(variables)
    scores = {name: jnp.where(finite, means[name], jnp.nan) for name in task.metrics}
    return {**means, **scores}


def evaluate_clients(training: LocalTraining, state: LearnerState, most: int) -> dict[str, Array]:
    """Compute the mean loss and the mean task scores over each client's held-out samples.

    ``most`` (static) is an upper bound on the total number of held-out samples. Returns float [K]
    for each metric, NaN for clients without held-out samples. All are NaN for a non-finite model.
    """
    partition, task = state.partition, training.task
    held_out = partition.held_out
    assert held_out is not None, "Learning.holdout is 0"
    end = jnp.cumsum(held_out)  # held-out samples are visited client by client
    first = partition.start + partition.size
    chunk = min(EVAL_CHUNK, most)

    def visit(i: Array, sums: dict[str, Array]) -> dict[str, Array]:
        place = i * chunk + jnp.arange(chunk)
        # Positions past the last sample get client number K, which the scatter below drops.
        client = jnp.searchsorted(end, place, side="right")
        rows = partition.order[first[client] + place - (end - held_out)[client]]
        quality = partition.quality[client].reshape(-1, *[1] * training.dataset.sample.ndim)
        x, y = client_inputs(training, rows, quality, state.inputs)
        outputs = training.network.predict(state.model, x)
        each = {"test_loss": task.loss(outputs, y), **task.scores(outputs, y)}
        added = {name: jnp.asarray(each[name], float) for name in sums}
        return {name: sums[name].at[client].add(added[name], mode="drop") for name in sums}

    zeros = dict.fromkeys(metrics_of(task), jnp.zeros(held_out.shape))
    sums = lax.fori_loop(0, -(-most // chunk), visit, zeros)
    divisor = jnp.where((held_out > 0) & all_finite(state.model), held_out, jnp.nan)
    return {name: total / divisor for name, total in sums.items()}


def local_loss(
    training: LocalTraining,
    variables: Variables,
    partition: Partition,
    client: Array,
    bits: Array | None,
    input_key: Array,
) -> Array:
    """Compute the global model's mean loss on one client's data, for policies that query losses.

    The random words ``bits``, uint32 [B], select B samples uniformly without replacement. If
    ``bits`` is None or the client has at most B samples, all its samples are used.
    """
    size = partition.size[client]
    max_size = training.largest
    start = partition.start[client]

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
    """Draw distinct integers, int32 [count], uniformly from [0, size) with Floyd's algorithm.

    ``bits`` are random words, uint32 [count]. If ``size`` < count, the first entries are -1.
    """
    count = len(bits)

    def draw(i: Array, drawn: Array) -> Array:
        last = size - count + i
        place = draws.below(bits[i], jnp.maximum(last, 0) + 1)
        place = jnp.where(jnp.any(drawn == place), last, place)
        return drawn.at[i].set(jnp.where(last >= 0, place, -1).astype(drawn.dtype))

    return lax.fori_loop(0, count, draw, jnp.full(count, -1, jnp.int32))
