"""Replies of clients: checked, and averaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from pause_jax.base.struct import ConfigError
from pause_jax.deploy.flower.protocol import EPSILON, PARTICIPATION, TOOK


class Answer(NamedTuple):
    """A usable reply.

    Attributes:
      arrays: the client's model.
      metrics: what it said beside.
      seconds: its latency, > 0.
    """

    arrays: dict[str, NDArray[Any]]
    metrics: Mapping[str, Any]
    seconds: float


def is_float(array: NDArray[Any]) -> bool:
    """Whether an array's numbers are floats: those make up the update."""
    return bool(np.issubdtype(array.dtype, np.floating))


def flat_update(
    trained: Mapping[str, NDArray[Any]], before: Mapping[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """What training adds to the model before it, all floats flat, [d]."""
    parts = [
        np.ravel(np.asarray(trained[name], np.float32) - np.asarray(array, np.float32))
        for name, array in before.items()
        if is_float(array)
    ]
    return np.concatenate([*parts, np.zeros(0, np.float32)])


def read(
    content: RecordDict, sent: ArrayRecord, stamped: float | None, *, needs_loss: bool
) -> Answer:
    """A reply's content, checked against the arrays that were sent.

    Its latency is ``stamped``, or its metric ``pause-seconds`` if None; ``needs_loss`` if the
    policy reads the metric ``loss``. Raises ConfigError if it cannot be used, with the reason.
    """
    counts = len(content.array_records), len(content.metric_records)
    if counts != (1, 1):
        raise ConfigError(
            f"its reply has {counts[0]} ArrayRecords and {counts[1]} MetricRecords: must be one of "
            "each."
        )
    (record,) = content.array_records.values()
    (metrics,) = content.metric_records.values()
    shapes = {name: tuple(array.shape) for name, array in sent.items()}
    got = {name: tuple(array.shape) for name, array in record.items()}
    if got != shapes:
        raise ConfigError(f"its arrays have the shapes {got}: must be {shapes}, as they were sent.")
    arrays = {}
    for name in shapes:
        try:
            arrays[name] = record[name].numpy().astype(sent[name].dtype, casting="same_kind")
        except Exception as error:  # whatever bytes a client sends, the server goes on
            short = str(error).partition("\n")[0]
            raise ConfigError(f"its array {name!r} cannot be read ({short}).") from None
        if not np.isfinite(arrays[name]).all():
            raise ConfigError(f"its array {name!r} is not finite.")
    seconds = metrics.get(TOOK) if stamped is None else stamped
    if not _is_finite(seconds) or not seconds > 0:
        raise ConfigError(
            f"its metric {TOOK} is {seconds}: must be the seconds that it took, > 0; the mod "
            "PrivateRelease reports them."
        )
    for name, most in ((PARTICIPATION, 2**31 - 1), (EPSILON, np.inf)):
        said = metrics.get(name, 1)
        if not isinstance(said, int | float) or not 0 < said <= most:
            raise ConfigError(f"its metric {name} is {said}: must be a number > 0.")
    if needs_loss and not _is_finite(metrics.get("loss")):
        raise ConfigError(
            f"the policy reads losses, and its metric 'loss' is {metrics.get('loss')}: must be a "
            "finite number; with PrivateRelease name it in clear, as it leaves without noise."
        )
    return Answer(arrays, metrics, float(seconds))


def _is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def average(answers: Mapping[int, Answer], weights: Mapping[int, float]) -> ArrayRecord | None:
    """The weighted mean of the models that came, weights made to sum to one; None if none came."""
    if not answers:
        return None
    total = sum(weights[client] for client in answers)
    mean = {}
    for name, like in next(iter(answers.values())).arrays.items():
        parts = [
            np.asarray(answer.arrays[name], np.float64) * (weights[client] / total)
            for client, answer in answers.items()
        ]
        # Whole numbers are rounded, as the mean of equal ones may be just below them.
        whole = np.asarray(sum(parts) if is_float(like) else np.rint(sum(parts)), like.dtype)
        mean[name] = Array(whole)
    return ArrayRecord(mean)


def mean_metrics(
    answers: Mapping[int, Answer], weights: Mapping[int, float], *, leave_out: Iterable[str]
) -> dict[str, Any]:
    """The weighted mean of each number that all clients gave."""
    if not answers:
        return {}
    total = sum(weights[client] for client in answers)
    common = set.intersection(*(set(answer.metrics) for answer in answers.values()))
    return {
        name: sum(weights[k] / total * float(a.metrics[name]) for k, a in answers.items())
        for name in sorted(common - set(leave_out))
        if all(isinstance(a.metrics[name], int | float) for a in answers.values())
    }
