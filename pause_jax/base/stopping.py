"""A signal that asks the process to stop: noted at once, obeyed where nothing is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

# Seconds between two looks for a signal, and at futures that do not report by themselves.
LOOK_EVERY = 0.2
# Numbers of the signals that came.
noted: list[int] = []


def check_stop() -> None:
    """Raise the noted signal as a KeyboardInterrupt with its name, once.

    A handler that raised would do so anywhere, also in a callback of JAX, which drops exceptions.
    """
    if noted:
        raise KeyboardInterrupt(signal.Signals(noted.pop()).name)


def as_completed(futures: Iterable[Any]) -> Iterator[Any]:
    """Yield futures when they are finished, also those of submitit, and look for signals."""
    pending = set(futures)
    # A finished future holds its result, and Dask runs a task again that someone holds.
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
