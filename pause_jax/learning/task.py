"""Tasks: what a model's outputs are for, their loss, and the figures on the test set."""

from __future__ import annotations

import operator
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.base.registry import label
from pause_jax.base.spelling import shown
from pause_jax.base.struct import Config, ConfigError
from pause_jax.learning.dataset import Dataset

# Samples of which losses are computed alone and together.
_TOGETHER = 8


class Task(Config):
    """A task. A custom one is a subclass with ``outputs``, ``loss``, perhaps ``scores``.

    Attributes:
      metrics: names of its scores; not ``test_loss``, nor another quantity that is recorded.
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
        import optax

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
        import optax

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


def shape_of_outputs(task: Task, data: Dataset) -> tuple[int, ...]:
    """What ``task.outputs`` returns. Raises ConfigError if that is no shape."""
    given = task.outputs(data)
    try:
        shape = tuple(map(operator.index, given))
    except TypeError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ConfigError(
            f"learning.task = {label(task)}: outputs gives {shown(given)}; must be a tuple of "
            "whole numbers >= 1, the shape for one sample, such as (1,)."
        )
    return shape


def check_outputs(task: Task, data: Dataset, outputs: jax.ShapeDtypeStruct, model: str) -> None:
    """Check the shape of a model's outputs for a batch of one.

    Raises:
      ConfigError: if it is not what the task needs.
    """
    name = label(task)
    needed = (1, *shape_of_outputs(task, data))
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
        raise ConfigError(
            f"learning.task = {name}: loss or scores cannot be computed from outputs and targets "
            f"of shapes {both[0].shape} and {both[1].shape} ({in_short(error)})."
        ) from error
    if "test_loss" in task.metrics:
        raise ConfigError(
            f"learning.task = {name}: a metric is called 'test_loss', as the mean of its loss is. "
            "Give it another name."
        )
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
    if type(task) not in TASKS:
        _check_each_alone(task, data, outputs)


def in_short(error: Exception) -> str:
    """An error's type, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}"


def _check_each_alone(task: Task, data: Dataset, outputs: jax.ShapeDtypeStruct) -> None:
    """Check that a sample's loss and scores do not depend on the samples beside it: arrays that
    broadcast against each other may well give the right shape.
    """
    # Not as many as another axis is long, as that would hide which axis is meant.
    taken = {*outputs.shape[1:], *data.y_train.shape[1:]}
    number = next(n for n in range(_TOGETHER, _TOGETHER + 9) if n not in taken)
    with jax.ensure_compile_time_eval():
        # Its numbers may be traced; what depends on which sample does so for any of them.
        fixed = jax.tree.map(lambda x: 0.5 if isinstance(x, jax.core.Tracer) else x, task)
        given = _examples(data, outputs, number)

        def each(o: Array, t: Array) -> dict[str, Array]:
            return {"loss": fixed.loss(o, t), **fixed.scores(o, t)}

        def alone(o: Array, t: Array) -> dict[str, Array]:
            return jax.tree.map(lambda x: x[0], each(o[None], t[None]))

        try:
            found = jax.jit(each)(*given), jax.jit(jax.vmap(alone))(*given)
        except Exception as error:
            raise ConfigError(
                f"learning.task = {label(task)}: loss or scores cannot be computed of {number} "
                f"samples, or of one ({type(error).__name__})."
            ) from error
    together, single = (jax.tree.map(lambda x: np.asarray(x, np.float64), x) for x in found)
    for what, values in together.items():
        near = 1e-3 * np.max(np.abs(values), initial=0, where=np.isfinite(values))
        same = np.isclose(values, single[what], rtol=1e-2, atol=near, equal_nan=True)
        if not same.all():
            one = int(np.argmin(same))
            raise ConfigError(
                f"learning.task = {label(task)}: {what} of a sample is {single[what][one]:.4g} "
                f"alone and {values[one]:.4g} among {number}; must be the same. Outputs are "
                f"{(number, *outputs.shape[1:])}, targets {given[1].shape}: give them one shape, "
                "such as by outputs[:, 0]."
            )


def _examples(data: Dataset, outputs: jax.ShapeDtypeStruct, number: int) -> tuple[Array, Array]:
    """Outputs and targets of some samples, from the smallest targets to the largest."""
    y, rng = data.y_train, np.random.default_rng(0)
    noise = rng.standard_normal((number, *outputs.shape[1:]))
    if isinstance(y, jax.core.Tracer):
        targets = rng.integers(data.num_classes, size=(number, *y.shape[1:])).astype(y.dtype)
        if jnp.issubdtype(y.dtype, jnp.floating):
            targets = rng.standard_normal(targets.shape).astype(y.dtype)
    else:
        known = np.asarray(y)
        order = np.argsort(known.reshape(len(known), -1).mean(axis=1), kind="stable")
        targets = known[order[np.linspace(0, len(order) - 1, number).astype(int)]]
        if jnp.issubdtype(y.dtype, jnp.floating):  # outputs where losses differ most
            noise = targets.mean() + targets.std() * noise
    return jnp.asarray(noise, outputs.dtype), jnp.asarray(targets)


def _wrong_targets(task: Task, data: Dataset, rule: str) -> ConfigError:
    y = data.y_train
    return ConfigError(
        f"learning.task = {task.name}: y_train is {y.dtype} of shape {y.shape}; must be {rule}."
    )
