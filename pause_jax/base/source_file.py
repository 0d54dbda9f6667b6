"""Input files of configs, read once when a run starts and then identified by their digests."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import os
import pathlib
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NoReturn, Self, TypeVar

from pause_jax.base.memory import check_memory
from pause_jax.base.spelling import shown
from pause_jax.base.struct import Config, ConfigError

T = TypeVar("T")
# (position of a line in its file, cells of the line, violated rule).
BadLine = tuple[str, Sequence[Any], str]


class FromFile(Config):
    """Base class for configs that may read a file."""

    def loaded(self) -> Self:
        """Read the config's file before tracing, and return the config with the file's digest."""
        return self

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Client ids in the file, ordered by client number; empty if the file has no ids."""
        return ()


def content_of(where: str, path: str | pathlib.Path) -> bytes:
    """Return the content of a regular file.

    Raises:
      ConfigError: if :func:`check_regular` rejects the file, or the file cannot be read. The
        message starts with ``where``, the name of the config field.
    """
    check_regular(where, path)
    with os_errors_as(f"{where} = {shown(path)}: cannot be read"):
        return pathlib.Path(path).read_bytes()


@contextlib.contextmanager
def os_errors_as(message: str) -> Iterator[None]:
    """Convert an OSError raised in the block to a ConfigError with ``message`` and the reason."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{message} ({error.strerror}).") from None


def check_regular(where: str, path: str | pathlib.Path) -> None:
    """Raise ConfigError unless a path is an accessible regular file that fits in memory."""
    with os_errors_as(f"{where} = {shown(path)}: cannot be read"):
        status = pathlib.Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(
            f"{where} = {shown(path)}: must be a regular file, not a folder, a pipe or a device."
        )
    check_memory(status.st_size, f"{where} = {shown(path)}: this file", "Use a smaller file.")


@contextlib.contextmanager
def written(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that atomically replaces ``path`` at the end of the ``with`` block.

    Raises:
      OSError: if the file cannot be written, in which case ``path`` is unchanged.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_names(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def sync_names(folder: pathlib.Path) -> None:
    """Flush a folder's entries to disk, if the system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def parsed(
    tables: dict[str, T],
    where: str,
    path: str,
    digest: str,
    parse: Callable[[bytes], T],
    part: str = "",
) -> str:
    """Read a file, store its parsed content in ``tables``, and return its SHA-256.

    Traced programs cannot read files, so they look up the content in ``tables``. The key is the
    digest followed by ``part``, which distinguishes several tables from the same file. ``where``
    is the config field, such as ``latency``. ``path`` may be relative to the working directory.

    Raises:
      ConfigError: if the file cannot be read, or does not match a non-empty ``digest``.
    """
    content = content_of(f"{where}.path", path)
    actual = hashlib.sha256(content).hexdigest()
    if digest not in ("", actual):
        raise ConfigError(
            f"{where}.digest = {digest!r}: must be {actual!r}, the digest of {path!r}. The file "
            f"has changed. Set {where}.digest = '' to use the new content."
        )
    if actual + part not in tables:
        tables[actual + part] = parse(content)
    return actual


def table(
    where: str, content: bytes, *, full: bool = True
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Parse a CSV file into (header, [(position, cells) of each line with data]).

    Raises:
      ConfigError: if the content is not CSV in UTF-8 or, with ``full``, if a line has more or fewer
        cells than the header.
    """
    try:
        if b"\0" in content:  # NumPy drops trailing NULs from strings
            raise csv.Error("contains a NUL byte")
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{where}: must be a CSV file in UTF-8 ({error}).") from None
    texts = [(f"line {place}", [cell.strip() for cell in row]) for place, row in enumerate(rows, 1)]
    (_, header), *lines = [line for line in texts if any(line[1])] or [("line 1", [])]
    rule = f"must have {len(header)} cells"
    bad = [(*line, rule) for line in lines if len(line[1]) != len(header)]
    if full and bad:
        refuse_lines(where, header, bad)
    return header, lines


def refuse_lines(
    where: str, header: Sequence[str], bad: Sequence[BadLine], also: str = ""
) -> NoReturn:
    """Raise ConfigError with a message that lists a file's header and its first ten bad lines."""
    named = [f"{line}, {shown(','.join(map(str, row)))}: {rule}" for line, row, rule in bad[:10]]
    more = f"; and {len(bad) - 10} more" if len(bad) > 10 else ""
    columns = shown(",".join(header))
    raise ConfigError(
        f"{where}, {'; '.join(named)}{more}. The header is {columns}. Fix or remove these "
        f"lines{also}."
    )
