"""What is varied in a search, and by what it is judged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.base.struct import ConfigError, field_at, is_node, is_static
from pause_jax.config import SimConfig, validate
from pause_jax.learning import Dataset
from pause_jax.run.setup import learner_of
from pause_jax.run.simulate import prepare

_RANGE = re.compile(r"^(log:)?([^:]+?)\.\.([^:]+)$")


class Axis(NamedTuple):
    """A number that is varied: its dotted path, its range, and whether by factors."""

    path: str
    low: float
    high: float
    log: bool = False


class Objective(NamedTuple):
    """What is to be small (or large).

    Attributes:
      text: as it was asked for.
      sign: 1 if it is to be small, -1 if large.
      record: the quantities that it needs.
      value: of a sweep's result, [config, seed]; not finite where a run has no value.
      needs: the quantity without which it is not defined, a key of ``NEEDS``; empty for none.
      near: of a sweep's result, [config, seed], how near a run came to a value: orders configs
        none of whose runs has one. None if that is not known.
      missing: what is printed for a run without a value.
    """

    text: str
    sign: int
    record: tuple[str, ...]
    value: Callable[[xr.Dataset], xr.DataArray]
    needs: str = ""
    near: Callable[[xr.Dataset], xr.DataArray] | None = None
    missing: str = "not finite"


# What a config must have for an objective, by the quantity that the objective reads.
NEEDS = {
    "test_accuracy": "a task with an accuracy, such as a classification",
    "test_loss": "learning",
    "regret": "track_regret = true and rounds that do not overlap",
}
_KNOWN: dict[str, Objective] = {
    each.text: each
    for each in (
        Objective(
            text="accuracy",
            sign=-1,
            record=("eval_clock", "test_accuracy"),
            value=metrics.final_accuracy,
            needs="test_accuracy",
        ),
        Objective(
            text="loss",
            sign=1,
            record=("eval_clock", "test_loss"),
            value=metrics.final_loss,
            needs="test_loss",
        ),
        Objective("regret", 1, ("regret",), metrics.total_regret, needs="regret"),
        Objective("seconds", 1, ("clock",), metrics.simulated_seconds),
    )
}


def axis_of(text: str, config: SimConfig) -> Axis:
    """The axis of ``PATH=LOW..HIGH`` or ``PATH=log:LOW..HIGH``.

    Raises:
      ConfigError: for another form, a field that is none or cannot be traced, or ends that break
        its rule.
    """
    path, equals, given = text.partition("=")
    match = _RANGE.match(given.strip())
    try:
        low, high = (float(word) for word in match.groups()[1:]) if match else (1.0, 0.0)
    except ValueError:
        low, high = 1.0, 0.0
    if not equals or match is None or not low < high or not math.isfinite(high - low):
        raise ConfigError(
            f"--vary {text}: must be PATH=LOW..HIGH or PATH=log:LOW..HIGH, LOW < HIGH, say "
            "reward.gamma=log:0.1..100."
        )
    axis = Axis(path, low, high, match.group(1) is not None)
    if axis.log and low <= 0:
        raise ConfigError(f"--vary {text}: a range by factors (log:) must be > 0.")
    field = field_at(config, path)
    if is_node(field) or is_static(field):
        raise ConfigError(
            f"--vary {text}: {path} is no number that can change within one program; compare its "
            "values with pause-jax sweep --vary."
        )
    for end in (low, high):
        validate(config.override({path: end}))
    return axis


def objective_of(text: str) -> Objective:
    """The objective of a text: ``seconds to 80 %``, ``accuracy``, ``loss``, ``regret`` or
    ``seconds``.

    Raises:
      ConfigError: for another one.
    """
    words = " ".join(text.split()).lower()
    if match := re.fullmatch(r"seconds to ([0-9.]+) ?%", words):
        target = float(match.group(1)) / 100
        if not 0 < target <= 1:
            raise ConfigError(f"--objective {text!r}: must be above 0 % and at most 100 %.")
        return Objective(
            words,
            1,
            ("eval_clock", "test_accuracy"),
            lambda result: metrics.time_to_accuracy(result, target),
            needs="test_accuracy",
            near=lambda result: result.test_accuracy.max("eval_round").fillna(0.0),
            missing="never",
        )
    if words not in _KNOWN:
        raise ConfigError(
            f"--objective {text!r}: must be 'seconds to 80 %' or another target, or one of "
            f"{', '.join(_KNOWN)}."
        )
    return _KNOWN[words]


def check_defined(objective: Objective, config: SimConfig, data: Dataset | None = None) -> None:
    """Refuse an objective that no run of a config can have.

    Args:
      objective: what is asked for.
      config: of the runs.
      data: a data set to use instead of the one that it names.

    Raises:
      ConfigError: if it is not defined, with those that are.
    """
    config, loaded = prepare(config, data)
    has = {""} | ({"regret"} if config.track_regret and not config.overlaps else set())
    if config.learning is not None:
        has |= set(learner_of(config, loaded).metrics)
    if objective.needs not in has:
        defined = [each.text for each in _KNOWN.values() if each.needs in has]
        raise ConfigError(
            f"--objective {objective.text!r}: needs {NEEDS[objective.needs]}. Take "
            f"{' or '.join(defined)}."
        )
