"""What clients and server do with a model, one client and one batch at a time, in float64 NumPy.

The gradients of affine layers with relu are written out. Any other module is differentiated by JAX,
on exactly the rows of the batch. A model is a flat vector of parameters and ``rest``, the running
statistics (if it has any).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.reference import round_keys, threefry
from tests.reference.sgd import batches, cross_entropy, half_squared_error, step


class Model(NamedTuple):
    """What is trained, flat, and what else a model holds."""

    theta: np.ndarray
    rest: dict[str, Any]


# Learners of one structure share these programs.


@functools.partial(jax.jit, static_argnums=(3, 4))
def assigned(partition, key, data, number, num_clients):
    """Who holds what."""
    return partition.assign(key, data, number, num_clients)


@functools.partial(jax.jit, static_argnums=0)
def initialised(module, key, x):
    """The first variables."""
    return module.init(key, x)


def is_regression(data) -> bool:
    """Whether the targets are numbers."""
    return np.asarray(data.y_train).dtype == np.float32


class Learner:
    """The data of every client, and what is computed with it. Draws come from named keys."""

    def __init__(self, config, streams, data):
        learning = self.learning = config.learning
        # In NumPy: JAX would compile the rows of each size of a batch.
        data = self.data = jax.tree.map(np.asarray, data)
        self.streams, self.noise = streams, {}
        self.criterion = half_squared_error if is_regression(data) else cross_entropy
        number = learning.data.num_train or len(data.y_train)
        part = assigned(learning.partition, streams.data, data, number, config.num_clients)
        order = np.asarray(part.order)
        slices = zip(np.asarray(part.start), np.asarray(part.size), strict=True)
        self.held = [order[start : start + size] for start, size in slices]
        self.quality = [float(q) for q in part.quality]
        self.most = learning.max_steps * learning.batch_size
        self.module = learning.model.module(data.num_classes)
        first = jnp.asarray(self.inputs(data.x_train[:1]), jnp.float32)
        initial = to_numpy(dict(initialised(self.module, streams.model, first)))
        # In the order of their names: first what is trained and released in the clear, if any.
        trained = {name: initial.pop(name) for name in ("clear", "params") if name in initial}
        self.in_the_clear = sum(leaf.size for leaf in jax.tree.leaves(trained.get("clear")))
        self.shape = jax.tree.structure(trained)
        self.shapes = [leaf.shape for leaf in jax.tree.leaves(trained)]
        self.initial = Model(flatten(trained), initial)
        self.by_hand = learning.model.name in ("linear", "mlp")
        self.gradient_of_module = jax.jit(jax.value_and_grad(self.loss_of_module, has_aux=True))

    def inputs(self, x):
        """Pixels to [-1, 1]; features as they are."""
        x = np.asarray(x, np.float64)
        return (x / self.data.pixel_max - 0.5) / 0.5 if self.data.pixel_max else x

    def samples(self, client, rows):
        """Inputs as the client's sensor sees them (the same in every round), and targets."""
        x = self.inputs(self.data.x_train[rows])
        if self.quality[client] < 1:
            spread = (2 if self.data.pixel_max else 1) * (1 - self.quality[client]) / 4
            x = x + spread * np.stack([self.sensor_noise(int(row)) for row in rows])
        return x, np.asarray(self.data.y_train)[rows]

    def sensor_noise(self, row):
        if row not in self.noise:
            shape = self.data.x_train.shape[1:]
            self.noise[row] = threefry.normal(self.streams.inputs, row, shape)
        return self.noise[row]

    def steps(self, client, factor=1.0):
        """Steps of a pass and of a round; ``factor`` multiplies the work."""
        learning = self.learning
        per_pass = min(math.ceil(len(self.held[client]) / learning.batch_size), learning.max_steps)
        wanted = float(learning.epochs) * per_pass
        if learning.local_steps is not None:
            wanted = learning.local_steps
        return per_pass, min(math.ceil(wanted * float(factor) - 1e-4), learning.max_steps)

    def batches(self, client, round, factor=1.0):
        """Rows of each step: passes over the client's samples, each in a new random order."""
        held, (per_pass, total) = self.held[client], self.steps(client, factor)
        found: list[np.ndarray] = []
        while len(found) < total:
            key = round_keys.cohort(self.streams.training, round)
            if found:
                key = jax.random.fold_in(key, len(found) // per_pass)
            lots = threefry.words(key, client, 1 + self.most)
            order = held[threefry.order_of(lots, len(held), self.most)]
            found += batches(order, self.learning.batch_size)
        return found[:total]

    def train(self, model, client, round, moments, factor=1.0):
        """Local SGD from the global model: (local model, moments, mean loss of the batches)."""
        theta, rest = model
        losses = []
        rate = learning_rate(self.learning, round)
        for rows in self.batches(client, round, factor):
            loss, gradient, rest = self.gradient(theta, rest, *self.samples(client, rows))
            losses.append(loss)
            if self.learning.proximal is not None:
                gradient = gradient + float(self.learning.proximal) * (theta - model.theta)
            theta, moments = step(theta, gradient, moments, rate, self.learning.optimizer)
        return Model(theta, rest), moments, sum(losses) / len(losses)

    def own_loss(self, model, client):
        """Mean loss of the global model on all data of a client."""
        x, y = self.samples(client, self.held[client])
        return self.criterion(self.outputs(model, x), y)[0]

    def evaluate(self, model):
        """(loss, accuracy) on the whole test set, whose pixels are those of the training set."""
        outputs = self.outputs(model, self.inputs(self.data.x_test))
        targets = np.asarray(self.data.y_test)
        right = np.mean(outputs.argmax(axis=1) == targets)
        loss, _ = self.criterion(outputs, targets)
        return loss, math.nan if is_regression(self.data) else right

    # ------------------------------------------------------------ the model itself

    def leaves(self, theta):
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = np.split(theta, ends)
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def variables(self, model):
        """The model in the form of Flax."""
        return {**jax.tree.unflatten(self.shape, self.leaves(model.theta)), **model.rest}

    def layers(self, theta):
        """(bias, kernel) of each affine layer, from the inputs on."""
        leaves = self.leaves(theta)
        return list(zip(leaves[::2], leaves[1::2], strict=True))

    def activations(self, theta, x):
        """What every affine layer is given; last, what the model puts out."""
        seen = [x.reshape(len(x), -1)]
        for place, (bias, kernel) in enumerate(self.layers(theta)):
            shown = np.maximum(seen[-1], 0) if place else seen[-1]
            seen[-1] = shown
            seen.append(shown @ kernel + bias)
        return seen

    def outputs(self, model, x):
        if self.by_hand:
            return self.activations(model.theta, x)[-1]
        variables = to_float32(self.variables(model))
        return np.asarray(jax.jit(self.module.apply)(variables, jnp.asarray(x, jnp.float32)))

    def gradient(self, theta, rest, x, y):
        """(mean loss of a batch, its gradient, the new running statistics)."""
        if not self.by_hand:
            trained = to_float32(self.variables(Model(theta, {})))
            x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y)
            (loss, rest), gradient = self.gradient_of_module(trained, to_float32(rest), x, y)
            return float(loss), flatten(to_numpy(gradient)), to_numpy(rest)
        *seen, outputs = self.activations(theta, x)
        loss, error = self.criterion(outputs, y)
        parts: list[np.ndarray] = []
        for shown, (_, kernel) in zip(seen[::-1], self.layers(theta)[::-1], strict=True):
            parts = [error.sum(axis=0), (shown.T @ error).ravel(), *parts]
            error = (error @ kernel.T) * (shown > 0)  # relu
        return loss, np.concatenate(parts), rest

    def loss_of_module(self, trained, rest, x, y):
        outputs, rest = self.module.apply({**trained, **rest}, x, train=True, mutable=list(rest))
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(outputs, y)), rest


def learning_rate(learning, round):
    """That of a round, whether or not anyone trained in those before it."""
    schedule, rate = learning.schedule, float(learning.learning_rate)
    if schedule.name == "step":
        for t in range(2, round + 1):
            if (t - 1) % schedule.every == 0:
                rate *= float(schedule.factor)
    elif schedule.name == "cosine":
        angle = math.pi * min((round - 1) / float(schedule.horizon), 1)
        least = rate * float(schedule.final)
        rate = least + (rate - least) * (1 + math.cos(angle)) / 2
    else:
        assert schedule.name == "constant"
    return rate


def flatten(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def to_numpy(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def to_float32(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
