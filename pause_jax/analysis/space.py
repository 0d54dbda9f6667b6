"""What is varied in a search, and by what it is judged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.config import SimConfig, validate
from pause_jax.struct import ConfigError, field_at, is_node, is_static

_RANGE = re.compile(r"^(log:)?([^:]+?)\.\.([^:]+)$")


class Axis(NamedTuple):
    """A number that is varied: its dotted path, its range, and whether by factors."""

    path: str
    low: float
    high: float
    log: bool = False

    def at(self, share: float) -> float:
        """The value at a share of the range, as the float32 that it becomes."""
        if self.log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        return float(str(np.float32(value)))


class Objective(NamedTuple):
    """What is to be small (or large).

    Attributes:
      text: as it was asked for.
      sign: 1 if it is to be small, -1 if large.
      record: the quantities that it needs.
      value: of a sweep's result, [config, seed].
    """

    text: str
    sign: int
    record: tuple[str, ...]
    value: Callable[[xr.Dataset], xr.DataArray]


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
        record = ("clock", "eval_clock", "test_accuracy")
        return Objective(words, 1, record, lambda result: _seconds_to(result, target))
    known = {
        "accuracy": (-1, ("eval_clock", "test_accuracy"), metrics.final_accuracy),
        "loss": (1, ("eval_clock", "test_loss"), metrics.final_loss),
        "regret": (1, ("regret",), metrics.total_regret),
        "seconds": (1, ("clock",), metrics.simulated_seconds),
    }
    if words not in known:
        raise ConfigError(
            f"--objective {text!r}: must be 'seconds to 80 %' or another target, or one of "
            f"{', '.join(known)}."
        )
    return Objective(words, *known[words])


def _seconds_to(result: xr.Dataset, target: float) -> xr.DataArray:
    """Seconds to the target. A run that does not reach it counts as its seconds, and as much again
    by the share of the target that is missing, so that nearer is better than farther.
    """
    best = result.test_accuracy.max("eval_round").fillna(0.0)
    never = metrics.simulated_seconds(result) * (2 + (target - best) / target)
    return metrics.time_to_accuracy(result, target).fillna(never)
