"""Tasks: what a model's outputs are for, their loss, and the figures on the test set."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from pause_jax.learning.dataset import Dataset
from pause_jax.struct import Config, ConfigError


class Task(Config):
    """A task. One of your own is a subclass: ``outputs``, ``loss``, perhaps ``scores``.

    Attributes:
      metrics: names of its scores.
    """

    metrics: ClassVar[tuple[str, ...]] = ()

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        """Shape of the outputs for one sample; the last entry is what a model is built for."""
        raise NotImplementedError

    def check_data(self, data: Dataset) -> None:
        """Raise ConfigError if it cannot be learnt from this data set."""

    def loss(self, outputs: Array, targets: Array) -> Array:
        """Loss of each sample, [B], of outputs [B, ...] and targets [B, ...]."""
        raise NotImplementedError

    def scores(self, outputs: Array, targets: Array) -> dict[str, Array]:
        """Of each sample, [B], by the names of ``metrics``: the test set's means are recorded."""
        return {}


class Classification(Task):
    """One of C labels: cross entropy; ``test_accuracy`` is the share of right ones."""

    name: ClassVar[str] = "classification"
    summary: ClassVar[str] = "labels: cross entropy, accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("test_accuracy",)

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        return (data.num_classes,)

    def check_data(self, data: Dataset) -> None:
        if data.y_train.ndim != 1 or not jnp.issubdtype(data.y_train.dtype, jnp.integer):
            raise _wrong_targets(self, data, "whole numbers [N], the labels")
        if data.num_classes < 2:
            raise ConfigError(
                f"num_classes = {data.num_classes}: must be >= 2, as one label leaves nothing to "
                "learn."
            )

    def loss(self, outputs: Array, targets: Array) -> Array:
        # Not by index: its gradient would scatter, which is slow to compile and to run on a CPU.
        return optax.softmax_cross_entropy(outputs, jax.nn.one_hot(targets, outputs.shape[-1]))

    def scores(self, outputs: Array, targets: Array) -> dict[str, Array]:
        return {"test_accuracy": jnp.argmax(outputs, axis=-1) == targets}


class Regression(Task):
    """One or more numbers: half the squared error, summed over a sample's targets."""

    name: ClassVar[str] = "regression"
    summary: ClassVar[str] = "numbers: half the squared error"

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        return data.y_train.shape[1:] or (1,)

    def check_data(self, data: Dataset) -> None:
        if data.y_train.ndim > 2 or not jnp.issubdtype(data.y_train.dtype, jnp.floating):
            raise _wrong_targets(self, data, "floats [N] or [N, k]")

    def loss(self, outputs: Array, targets: Array) -> Array:
        error = outputs.reshape(targets.shape) - targets
        return 0.5 * jnp.sum(jnp.square(error).reshape(len(targets), -1), axis=1)


class NextToken(Task):
    """The next of V tokens at each of L places: cross entropy; accuracy over all places."""

    name: ClassVar[str] = "next_token"
    summary: ClassVar[str] = "a token at every place: cross entropy, accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("test_accuracy",)

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        return (data.y_train.shape[1], data.num_classes)

    def check_data(self, data: Dataset) -> None:
        x, y = data.x_train, data.y_train
        whole = jnp.issubdtype(x.dtype, jnp.integer) and jnp.issubdtype(y.dtype, jnp.integer)
        if data.pixel_max or not whole or x.ndim != 2 or x.shape != y.shape:
            raise _wrong_targets(self, data, "whole numbers [N, L] like x_train, the tokens")

    def loss(self, outputs: Array, targets: Array) -> Array:
        each = optax.softmax_cross_entropy_with_integer_labels(outputs, targets)
        return jnp.mean(each, axis=1)

    def scores(self, outputs: Array, targets: Array) -> dict[str, Array]:
        return {"test_accuracy": jnp.mean(jnp.argmax(outputs, axis=-1) == targets, axis=1)}


TASKS: tuple[type[Task], ...] = (Classification, Regression, NextToken)


def task_of(data: Dataset) -> Task:
    """What the targets say: floats are a regression, rows of whole numbers tokens, else labels."""
    if jnp.issubdtype(data.y_train.dtype, jnp.floating):
        return Regression()
    return Classification() if data.y_train.ndim == 1 else NextToken()


def metrics_of(task: Task) -> tuple[str, ...]:
    """Names of what an evaluation gives."""
    return ("test_loss", *task.metrics)


def check_outputs(task: Task, data: Dataset, outputs: jax.ShapeDtypeStruct, model: str) -> None:
    """Check the shape of a model's outputs for a batch of one.

    Raises:
      ConfigError: if it is not what the task needs.
    """
    name = task.name or type(task).__name__
    needed = (1, *task.outputs(data))
    if not isinstance(outputs, jax.ShapeDtypeStruct):
        raise ConfigError(f"{model}: gives a {type(outputs).__name__}; must give one array.")
    if outputs.shape != needed:
        raise ConfigError(
            f"{model}: gives outputs of shape {outputs.shape} for one sample; the task {name} "
            f"needs {needed}."
        )
    # Two samples: with one, a mean over the batch would have the right shape.
    y = data.y_train
    both = (
        jax.ShapeDtypeStruct((2, *needed[1:]), outputs.dtype),
        jax.ShapeDtypeStruct((2, *y.shape[1:]), y.dtype),
    )
    try:
        loss, scores = jax.eval_shape(lambda o, t: (task.loss(o, t), task.scores(o, t)), *both)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0][:200]
        raise ConfigError(
            f"learning.task = {name}: loss or scores cannot be computed from outputs and targets "
            f"of shapes {both[0].shape} and {both[1].shape} ({type(error).__name__}: {line})."
        ) from error
    if set(scores) != set(task.metrics):
        raise ConfigError(
            f"learning.task = {name}: scores gives {sorted(scores)}, and its metrics are "
            f"{sorted(task.metrics)}; must be the same names."
        )
    for what, value in {"loss": loss, **scores}.items():
        is_number = what != "loss" or jnp.issubdtype(value.dtype, jnp.floating)
        if value.shape != (2,) or not is_number:
            raise ConfigError(
                f"learning.task = {name}: {what} gives {value.dtype} of shape {value.shape} for "
                "two samples; must be a float of each, (2,)."
            )


def _wrong_targets(task: Task, data: Dataset, rule: str) -> ConfigError:
    y = data.y_train
    return ConfigError(
        f"learning.task = {task.name}: y_train is {y.dtype} of shape {y.shape}; must be {rule}."
    )
