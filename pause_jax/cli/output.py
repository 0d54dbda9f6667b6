"""Handling of error messages, stop signals, and a full or closed standard output."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from pause_jax.base import stopping
from pause_jax.base.stopping import check_stop

# Ctrl-C sends SIGINT, SLURM and Kubernetes send SIGTERM, and closing a terminal sends SIGHUP.
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


def open_streams() -> None:
    """Make output streams accept any string, even if they are closed or support only ASCII."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115, never closed
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        setattr(sys, name, stream)


def print_error(message: str) -> None:
    """Print an error to standard error. Brackets in ``message`` are not parsed as markup."""
    Console(stderr=True).print(f"[red]error:[/red] {escape(message)}", highlight=False)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Record the first stop signal for ``check_stop``. A second signal kills the process.

    Raises:
      SystemExit: if a signal arrives before the first run or after the last run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        stopping.noted.append(number)
        for each in watched:
            signal.signal(each, signal.SIG_DFL)

    # Signals that are already ignored, such as SIGHUP under nohup, must stay ignored.
    watched = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in watched}
    outcome = "stopped the command before the first run"
    try:
        yield
        outcome = "arrived after the last run. Nothing was lost"
        check_stop()
    except KeyboardInterrupt as error:
        Console(stderr=True).print(f"[red]{error} {outcome}.[/red]", highlight=False)
        raise SystemExit(status_of(error)) from None
    finally:
        stopping.noted.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def status_of(error: BaseException | None) -> int:
    """Return the exit status: 128 plus the signal number after a signal, otherwise 1."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + int(getattr(signal, str(error), signal.SIGINT))
    return 1


def end_of_space(error: OSError) -> NoReturn:
    """Print one line and exit with status 1 if a disk is full. Otherwise, reraise the error."""
    if error.errno != errno.ENOSPC:
        raise error
    # Redirect standard output to the null device, where the flush at exit cannot fail.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print_error(f"{error.filename or 'standard output'}: cannot be written ({error.strerror}).")
    sys.exit(1)
