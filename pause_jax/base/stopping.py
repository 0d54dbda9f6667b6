"""Graceful stop of a process, which records signals and raises them where no work is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

# Seconds between checks for signals, and between polls of futures that `wait` does not support.
LOOK_EVERY = 0.2
# Numbers of received signals that `check_stop` has not yet raised.
noted: list[int] = []


def check_stop() -> None:
    """Raise KeyboardInterrupt with the signal's name, once for each received signal.

    A signal handler must not raise, because JAX discards exceptions that are raised in a callback.
    """
    if noted:
        raise KeyboardInterrupt(signal.Signals(noted.pop()).name)


def as_completed(futures: Iterable[Any]) -> Iterator[Any]:
    """Yield futures or submitit jobs as they finish, and check for signals in between."""
    pending = set(futures)
    # A held future keeps its result in memory, and Dask may rerun the task of a held future.
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
