"""Recorded signals, raised as KeyboardInterrupt at points where no work is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

# Seconds between checks for signals, and between polls of futures that `wait` does not support.
LOOK_EVERY = 0.2
# Numbers of received signals for which `check_stop` has not yet raised KeyboardInterrupt.
noted: list[int] = []


def check_stop() -> None:
    """Raise KeyboardInterrupt with the signal's name, once for each received signal.

    A signal handler must not raise, because JAX discards exceptions that are raised in callbacks.
    """
    if noted:
        raise KeyboardInterrupt(signal.Signals(noted.pop()).name)


def as_completed(futures: Iterable[Any]) -> Iterator[Any]:
    """Yield futures or submitit jobs as they finish, and check for signals in between."""
    pending = set(futures)
    # A reference to a future keeps the result in memory, and may make Dask rerun the task.
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
