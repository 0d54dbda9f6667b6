"""Graceful stop of a process: signals are recorded, then raised where no work is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

# Seconds between checks for signals, and for results of futures that cannot be waited on.
LOOK_EVERY = 0.2
# Numbers of the signals received and not yet raised.
noted: list[int] = []


def check_stop() -> None:
    """Raise KeyboardInterrupt, once, with the name of a received signal.

    A signal handler could raise anywhere, even in a JAX callback, which discards exceptions.
    """
    if noted:
        raise KeyboardInterrupt(signal.Signals(noted.pop()).name)


def as_completed(futures: Iterable[Any]) -> Iterator[Any]:
    """Yield futures as they finish, including submitit jobs, and check for signals."""
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
