"""Handling of stop signals, and of a full or closed standard output."""

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

# Exit status if the reader of a pipe, such as ``head``, exits first (128 + SIGPIPE).
READER_HAS_GONE = 128 + getattr(signal, "SIGPIPE", 13)
# Ctrl-C sends SIGINT, SLURM and Kubernetes send SIGTERM, and a closed terminal sends SIGHUP.
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


def open_streams() -> None:
    """Make output streams accept any string, even if they are closed or support only ASCII."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115, for all of the program
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        setattr(sys, name, stream)


class Output(Console):
    """Console on standard output that ends the program silently if the pipe is closed."""

    def on_broken_pipe(self) -> NoReturn:
        _discard()
        raise SystemExit(READER_HAS_GONE)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Record the first stop signal for ``check_stop``. The second ends the process immediately.

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

    # nohup ignores SIGHUP, which must stay ignored.
    watched = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in watched}
    said = "stopped it before the first run"
    try:
        yield
        said = "came after the last run: nothing is lost"
        check_stop()
    except KeyboardInterrupt as error:
        Console(stderr=True).print(f"[red]{error} {said}.[/red]", highlight=False)
        raise SystemExit(status_of(error)) from None
    finally:
        stopping.noted.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def status_of(error: BaseException | None) -> int:
    """Return the exit status for an error (128 plus a signal's number, or 1 for a failure)."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + int(getattr(signal, str(error), signal.SIGINT))
    return 1


def flush() -> None:
    """Flush standard output, or exit silently if the pipe is closed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard()
        raise SystemExit(READER_HAS_GONE) from None


def end_of_space(error: OSError) -> NoReturn:
    """Exit with one line and status 1 if a device is full; reraise any other error."""
    if error.errno != errno.ENOSPC:
        raise error
    _discard()
    where = escape(str(error.filename or "standard output"))
    Console(stderr=True).print(
        f"[red]error:[/red] {where}: cannot be written ({error.strerror}).", highlight=False
    )
    sys.exit(1)


def _discard() -> None:
    """Redirect standard output to the null device, where the interpreter's flush cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
