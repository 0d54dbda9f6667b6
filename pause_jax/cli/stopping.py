"""How a running program is asked to stop: by Ctrl-C, or by the signals of a cluster."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# What SLURM and Kubernetes send before the end, and what a closed terminal sends.
SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(KeyboardInterrupt):
    """A signal asked to stop.

    Attributes:
      number: of the signal.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """While the block runs, the first signal to stop is raised as ``Stopped``; the second ends the
    process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Stopped(number)

    # Under nohup SIGHUP is ignored, and stays so.
    watched = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in watched}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def status_of(error: BaseException | None) -> int:
    """The exit status of a program that stopped: 128 and the signal's number, 1 for a failure."""
    if isinstance(error, Stopped):
        return 128 + error.number
    return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
