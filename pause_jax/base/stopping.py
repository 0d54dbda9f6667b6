"""Deferred stop signals, recorded on receipt and raised later as KeyboardInterrupt."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

# Interval in seconds between signal checks, and between polls of futures without `wait` support.
LOOK_EVERY = 0.2
# Signal numbers (such as SIGTERM) received but not yet raised by `check_stop`.
noted: list[int] = []


def check_stop() -> None:
    """Raise KeyboardInterrupt with the signal's name, once for each received signal.

    Signal handlers must not raise exceptions, because JAX discards exceptions in callbacks.
    """
    if noted:
        raise KeyboardInterrupt(signal.Signals(noted.pop()).name)


def as_completed(futures: Iterable[Any]) -> Iterator[Any]:
    """Yield futures or submitit jobs as they finish, checking for signals while waiting."""
    pending = set(futures)
    # A reference to a future keeps its result in memory, and may make Dask rerun its task.
    del futures
    report = all(isinstance(future, Future) for future in pending)
    while pending:
        check_stop()
        if report:
            wait(pending, LOOK_EVERY, FIRST_COMPLETED)
        else:
            time.sleep(LOOK_EVERY)
        finished = [future for future in pending if future.done()]
        pending.difference_update(finished)
        while finished:
            yield finished.pop()
