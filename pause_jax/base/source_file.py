"""Files that a config names: read once when a run starts, then known by their digest."""

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
# Its place in a file, its cells, and the rule that it breaks.
BadLine = tuple[str, Sequence[Any], str]


class FromFile(Config):
    """Part of a config that may read files."""

    def loaded(self) -> Self:
        """The part with what it reads from files; done on the host before a run is traced."""
        return self

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Ids of clients 0, 1, ... in the file that it reads; empty if it knows no ids."""
        return ()


def content_of(where: str, path: str | pathlib.Path) -> bytes:
    """Return the content of a regular file, which ``where`` names.

    Raises:
      ConfigError: as :func:`check_regular`, or if it cannot be read.
    """
    check_regular(where, path)
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{where} = {shown(path)}: cannot be read ({error.strerror}).") from None


def check_regular(where: str, path: str | pathlib.Path) -> None:
    """Check that a config's path is a regular file, in reach, and smaller than the memory."""
    try:
        status = pathlib.Path(path).stat()
    except OSError as error:
        raise ConfigError(f"{where} = {shown(path)}: cannot be read ({error.strerror}).") from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(
            f"{where} = {shown(path)}: must be a regular file, not a folder, a pipe or a device."
        )
    check_memory(status.st_size, f"{where} = {shown(path)}: such a file", "Name a smaller one.")


@contextlib.contextmanager
def written(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Yield a file to write that replaces ``path`` once it is whole, and on the disk.

    Raises:
      OSError: if it cannot be written; ``path`` is then as before.
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
    """Make the names in a folder outlive a power cut, where the system can."""
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
    """Read a file and keep its parsed content in ``tables``; return its SHA-256.

    A traced program cannot read a file: it finds the content in the table, by the digest and the
    ``part`` of the file that is parsed. ``where`` is the config's part that names the file, such as
    ``latency``. A relative path starts at the working directory.

    Raises:
      ConfigError: if it cannot be read, or is another than that of ``digest``, empty for any.
    """
    content = content_of(f"{where}.path", path)
    actual = hashlib.sha256(content).hexdigest()
    if digest not in ("", actual):
        raise ConfigError(
            f"{where}.digest = {digest!r}: must be that of {path!r}, which is {actual!r}. The file "
            f"has changed since; set {where}.digest to '' to take it as it is."
        )
    if actual + part not in tables:
        tables[actual + part] = parse(content)
    return actual


def table(
    where: str, content: bytes, *, full: bool = True
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the header of a CSV file, and the place and the cells of each line that is not blank.

    Raises:
      ConfigError: if it is no CSV file, or ``full`` and a line lacks a cell or has one too many.
    """
    try:
        if b"\0" in content:  # NumPy drops it from the end of a text
            raise csv.Error("it has a NUL")
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
    """Raise ConfigError naming the first ten bad lines of a file, and its header."""
    named = [f"{line}, {shown(','.join(map(str, row)))}: {rule}" for line, row, rule in bad[:10]]
    more = f"; and {len(bad) - 10} more" if len(bad) > 10 else ""
    columns = shown(",".join(header))
    raise ConfigError(
        f"{where}, {'; '.join(named)}{more}. The header is {columns}. Correct or delete such "
        f"lines{also}."
    )
