"""Timing of calls in this process, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from pause_jax import ConfigError


class Timing(NamedTuple):
    """Seconds of a call.

    Attributes:
      first: seconds of the first call, which compiles and reads the data.
      later: seconds of each later call.
      failure: reason for missing seconds, or "".
    """

    first: float
    later: list[float]
    failure: str = ""

    @property
    def median(self) -> float:
        """Median of the later calls; NaN without later calls."""
        return statistics.median(self.later) if self.later else float("nan")


def in_turns(
    calls: Mapping[str, Callable[[], object]],
    repeat: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    keep_going: bool = False,
) -> dict[str, Timing]:
    """Time calls in turns: once each to compile, then ``repeat`` times.

    Args:
      calls: functions by name, timed until their results are ready.
      repeat: number of turns after the first call.
      clock: ``time.process_time`` for processor seconds.
      keep_going: whether to record the ``failure`` of a call and skip its later turns.

    Returns:
      Timings by name.
    """
    timings: dict[str, Timing] = {}
    for turn in range(1 + repeat):
        for name, call in calls.items():
            if turn and timings[name].failure:
                continue
            start = clock()
            try:
                jax.block_until_ready(call())
            except (ConfigError, RuntimeError) as error:
                if not keep_going or isinstance(error.__cause__, KeyboardInterrupt):
                    raise
                timings[name] = Timing(float("nan"), [], f"failed: {str(error).splitlines()[0]}")
                continue
            seconds = clock() - start
            if turn:
                timings[name].later.append(seconds)
            else:
                timings[name] = Timing(seconds, [])
    return timings
