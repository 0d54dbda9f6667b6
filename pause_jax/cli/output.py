"""Standard output, which may be full or lead to a reader that has gone."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

# The status of a program whose reader has gone, as in ``| head``: 128 and the number of SIGPIPE.
READER_HAS_GONE = 128 + getattr(signal, "SIGPIPE", 13)


class Output(Console):
    """A console on standard output; if its reader has gone, the program ends in silence."""

    def on_broken_pipe(self) -> NoReturn:
        _discard()
        raise SystemExit(READER_HAS_GONE)


def flush() -> None:
    """Write what is left in the buffer of standard output, which Python would do too late to say
    what failed.

    Raises:
      SystemExit: if the reader has gone.
      OSError: if the device is full.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard()
        raise SystemExit(READER_HAS_GONE) from None


def end_of_space(error: OSError) -> NoReturn:
    """End a program with a line on the full device.

    Raises:
      SystemExit: with status 1.
      OSError: the error itself, if it is another one.
    """
    if error.errno != errno.ENOSPC:
        raise error
    _discard()
    where = error.filename or "standard output"
    Console(stderr=True).print(
        f"[red]error:[/red] {escape(str(where))}: cannot be written ({error.strerror}).",
        highlight=False,
    )
    sys.exit(1)


def _discard() -> None:
    """Let standard output lead nowhere, so that the interpreter's own flush cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
