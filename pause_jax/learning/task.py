"""Learning tasks, which define a model's output shape, loss and test scores."""

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

# Minimum batch size when checking that a task's loss and scores do not mix samples.
_TOGETHER = 8


class Task(Config):
    """Base class for learning tasks. Override ``outputs``, ``loss`` and optionally ``scores``.

    Attributes:
      metrics: names of the scores, which must differ from the names of other recorded quantities.
    """

    metrics: ClassVar[tuple[str, ...]] = ()

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        """Return the output shape for one sample, ``(..., num_outputs)``."""
        raise NotImplementedError

    def check_data(self, data: Dataset) -> None:
        """Raise ConfigError if the data set is unsuitable for the task."""

    def loss(self, outputs: Array, targets: Array) -> Array:
        """Compute per-sample losses [B] from outputs [B, ...] and targets [B, ...]."""
        raise NotImplementedError

    def scores(self, outputs: Array, targets: Array) -> dict[str, Array]:
        """Compute per-sample scores [B], keyed by metric name, to be averaged over the test set."""
        return {}


class Classification(Task):
    """Classification into C labels, with cross-entropy loss and a ``test_accuracy`` score."""

    name: ClassVar[str] = "classification"
    summary: ClassVar[str] = "labels, with cross-entropy loss and accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("test_accuracy",)

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        return (data.num_classes,)

    def check_data(self, data: Dataset) -> None:
        if data.y_train.ndim != 1 or not jnp.issubdtype(data.y_train.dtype, jnp.integer):
            raise _wrong_targets(self, data, "integer labels [N]")
        if data.num_classes < 2:
            raise ConfigError(
                f"num_classes = {data.num_classes}: must be >= 2. A single label leaves nothing "
                "to learn."
            )

    def loss(self, outputs: Array, targets: Array) -> Array:
        import optax

        # The gradient of indexing is a scatter, which is slow to compile and to run on a CPU.
        return optax.softmax_cross_entropy(outputs, jax.nn.one_hot(targets, outputs.shape[-1]))

    def scores(self, outputs: Array, targets: Array) -> dict[str, Array]:
        return {"test_accuracy": jnp.argmax(outputs, axis=-1) == targets}


class Regression(Task):
    """Regression, where a sample's loss is half the squared error summed over its targets."""

    name: ClassVar[str] = "regression"
    summary: ClassVar[str] = "numeric targets, with half the squared error as loss"

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        return data.y_train.shape[1:] or (1,)

    def check_data(self, data: Dataset) -> None:
        if data.y_train.ndim > 2 or not jnp.issubdtype(data.y_train.dtype, jnp.floating):
            raise _wrong_targets(self, data, "floats [N] or [N, k]")

    def loss(self, outputs: Array, targets: Array) -> Array:
        error = outputs.reshape(targets.shape) - targets
        return 0.5 * jnp.sum(jnp.square(error).reshape(len(targets), -1), axis=1)


class NextToken(Task):
    """Next-token prediction at each of L positions, with cross-entropy loss over V tokens.

    A sample's loss and ``test_accuracy`` score are means over its positions.
    """

    name: ClassVar[str] = "next_token"
    summary: ClassVar[str] = "one token per position, with cross-entropy loss and accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("test_accuracy",)

    def outputs(self, data: Dataset) -> tuple[int, ...]:
        return (data.y_train.shape[1], data.num_classes)

    def check_data(self, data: Dataset) -> None:
        x, y = data.x_train, data.y_train
        whole = jnp.issubdtype(x.dtype, jnp.integer) and jnp.issubdtype(y.dtype, jnp.integer)
        if data.pixel_max or not whole or x.ndim != 2 or x.shape != y.shape:
            raise _wrong_targets(self, data, "integer tokens [N, L], like x_train")

    def loss(self, outputs: Array, targets: Array) -> Array:
        import optax

        each = optax.softmax_cross_entropy_with_integer_labels(outputs, targets)
        return jnp.mean(each, axis=1)

    def scores(self, outputs: Array, targets: Array) -> dict[str, Array]:
        return {"test_accuracy": jnp.mean(jnp.argmax(outputs, axis=-1) == targets, axis=1)}


TASKS: tuple[type[Task], ...] = (Classification, Regression, NextToken)


def task_of(data: Dataset) -> Task:
    """Infer the task from the targets (labels, floats or rows of tokens)."""
    if jnp.issubdtype(data.y_train.dtype, jnp.floating):
        return Regression()
    return Classification() if data.y_train.ndim == 1 else NextToken()


def metrics_of(task: Task) -> tuple[str, ...]:
    """Return the names of all metrics that are computed on the test set."""
    return ("test_loss", *task.metrics)


def shape_of_outputs(task: Task, data: Dataset) -> tuple[int, ...]:
    """Return ``task.outputs(data)``, or raise ConfigError if it is not a valid shape."""
    outputs = task.outputs(data)
    try:
        shape = tuple(map(operator.index, outputs))
    except TypeError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ConfigError(
            f"learning.task = {label(task)}: outputs returned {shown(outputs)}, but must return "
            "the output shape of one sample, a tuple of positive integers such as (1,)."
        )
    return shape


def check_outputs(task: Task, data: Dataset, outputs: jax.ShapeDtypeStruct, model: str) -> None:
    """Validate a model's output shape for a batch of one sample. Also validate custom tasks."""
    needed = (1, *shape_of_outputs(task, data))
    if not isinstance(outputs, jax.ShapeDtypeStruct):
        raise ConfigError(f"{model}: returned {type(outputs).__name__}, but must return one array.")
    if outputs.shape != needed:
        raise ConfigError(
            f"{model}: returned outputs of shape {outputs.shape} for one sample, but "
            f"{label(task)} needs {needed}."
        )
    if type(task) not in TASKS:
        _check_custom(task, data, outputs)


def _check_custom(task: Task, data: Dataset, outputs: jax.ShapeDtypeStruct) -> None:
    """Check that a sample's loss and scores are single numbers that depend on no other sample."""
    name = f"learning.task = {label(task)}"
    y = data.y_train
    if odd := [each for each in task.metrics if not each.isidentifier()]:
        raise ConfigError(
            f"{name}: metric {odd[0]!r} must consist of letters, digits and _, because it names a "
            "variable in the results file. Rename the metric."
        )
    if "test_loss" in task.metrics:
        raise ConfigError(
            f"{name}: metric name 'test_loss' is reserved for the mean loss. Rename the metric."
        )
    # A batch size that differs from all axis lengths exposes reductions over the wrong axis.
    lengths = {*outputs.shape[1:], *y.shape[1:]}
    number = next(n for n in range(_TOGETHER, _TOGETHER + 9) if n not in lengths)
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((number, *outputs.shape[1:])).astype(outputs.dtype)
    targets = rng.standard_normal((number, *y.shape[1:])).astype(y.dtype)
    if jnp.issubdtype(y.dtype, jnp.integer):
        targets = rng.integers(data.num_classes, size=targets.shape).astype(y.dtype)
    # Replace traced parameters with 0.5, because the independence check needs concrete values.
    fixed = jax.tree.map(lambda x: 0.5 if isinstance(x, jax.core.Tracer) else x, task)

    def together(o: Array, t: Array) -> dict[str, Array]:
        return {"loss": fixed.loss(o, t), **fixed.scores(o, t)}

    def alone(o: Array, t: Array) -> dict[str, Array]:
        return jax.tree.map(lambda x: jnp.reshape(x, ()), together(o[None], t[None]))

    try:
        with jax.ensure_compile_time_eval():
            values = jax.jit(together)(batch, targets)
            single = jax.jit(jax.vmap(alone))(batch, targets)
    except Exception as error:
        raise ConfigError(
            f"{name}: loss or scores failed for {number} samples or for one sample, with outputs "
            f"of shape {batch.shape} and targets {targets.shape} ({in_short(error)})."
        ) from error
    if set(values) - {"loss"} != set(task.metrics):
        raise ConfigError(
            f"{name}: scores returned {sorted(set(values) - {'loss'})}, but metrics lists "
            f"{sorted(task.metrics)}. Use the same names."
        )
    for what, value in values.items():
        is_number = what != "loss" or jnp.issubdtype(value.dtype, jnp.floating)
        if value.shape != (number,) or not is_number:
            raise ConfigError(
                f"{name}: {what} returned {value.dtype} of shape {value.shape} for {number} "
                f"samples, but must return one float per sample, shape ({number},)."
            )
        among, by_itself = np.asarray(value, float), np.asarray(single[what], float)
        near = 1e-3 * np.max(np.abs(among), initial=0, where=np.isfinite(among))
        same = np.isclose(among, by_itself, rtol=1e-2, atol=near, equal_nan=True)
        if not same.all():
            sample = int(np.argmin(same))
            raise ConfigError(
                f"{name}: {what} of a sample is {by_itself[sample]:.4g} in a batch of "
                f"one but {among[sample]:.4g} in a batch of {number}: must be the same. Outputs "
                f"have shape {batch.shape} and targets {targets.shape}. Make the shapes equal, for "
                "example with outputs[:, 0]."
            )


def in_short(error: Exception) -> str:
    """Return an error's type and the first 200 characters of the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}"


def _wrong_targets(task: Task, data: Dataset, rule: str) -> ConfigError:
    y = data.y_train
    return ConfigError(
        f"learning.task = {task.name}: y_train is {y.dtype} of shape {y.shape}; must be {rule}."
    )
