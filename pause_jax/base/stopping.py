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


class Stopped(KeyboardInterrupt):
    """A signal, of this number, asked to stop."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def check_stop() -> None:
    """Raise the noted signal, once.

    A handler that raised would do so anywhere, also in a callback of JAX, which drops exceptions.
    """
    if noted:
        raise Stopped(noted.pop())


def as_completed(futures: Iterable[Any]) -> Iterator[Any]:
    """Yield futures when they are finished, also those of submitit, which have to be asked.

    Raises:
      Stopped: when a signal has come.
    """
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
