"""What an import is asked for, and what it gives: tables, arrays and a few sentences."""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from pause_jax.analysis import csv_file
from pause_jax.base.source_file import check_regular, written
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.learning.files import Files

T = TypeVar("T")
Rows = Iterable[Iterable[Any]]
DEVICES, FLEET, INTERVALS, DATA = "devices.csv", "fleet.csv", "intervals.csv", "clients.npz"
# What Python raises where an entry is another than expected.
WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Request(NamedTuple):
    """What is to be imported.

    Attributes:
      paths: of the files, as they were downloaded.
      clients: how many to keep at most, drawn by ``seed``; None for all.
      seed: of that draw.
      ids: what the clients are called from now on; empty for 0, 1, ... Data has its own ids.
      columns: the library's name of a column -> the file's.
    """

    paths: tuple[pathlib.Path, ...]
    clients: int | None = None
    seed: int = 0
    ids: tuple[str, ...] = ()
    columns: Mapping[str, str] = MappingProxyType({})

    @property
    def path(self) -> pathlib.Path:
        """The one file of a source that has one.

        Raises:
          ConfigError: if there are more.
        """
        if len(self.paths) > 1:
            refuse(self.paths[1], "must be imported by itself, into a folder of its own")
        return self.paths[0]

    def number(self, known: int) -> int:
        """How many clients to keep of ``known`` ones.

        Raises:
          ConfigError: if there are fewer than ids.
        """
        if len(self.ids) > known:
            raise ConfigError(
                f"--ids: has {len(self.ids)} clients; must be at most {known}, as many as the file."
            )
        return len(self.ids) or min(self.clients or known, known)

    def places(self, known: int) -> NDArray[np.int64]:
        """Places of the clients to keep, of ``known`` ones, in the order of the file."""
        number = self.number(known)
        if number == known:
            return np.arange(known)
        return np.sort(np.random.default_rng(self.seed).choice(known, number, replace=False))

    def names(self, number: int) -> tuple[str, ...]:
        """What ``number`` clients are called from now on."""
        return self.ids or tuple(map(str, range(number)))

    def kept(self, users: Collection[str]) -> set[str]:
        """The users to keep: by lots that each draws, so files can be read one after the other.

        Raises:
          ConfigError: if other ids are asked for.
        """
        if self.ids:
            raise ConfigError("--ids: the clients of this file have ids. Leave --ids out.")

        def lot(user: str) -> bytes:
            return hashlib.sha256(f"{self.seed} {user}".encode()).digest()

        return set(sorted(users, key=lot)[: self.clients])


class Imported(NamedTuple):
    """What an import gives.

    Attributes:
      tables: rows of each CSV file, headings first, by the file's name.
      arrays: of ``clients.npz``; empty for none.
      notes: what the user must know, in sentences.
    """

    tables: dict[str, Rows]
    arrays: dict[str, Any]
    notes: tuple[str, ...] = ()

    def write(self, folder: pathlib.Path) -> list[pathlib.Path]:
        """Write all files into a folder, which is made, and return their paths.

        Raises:
          ConfigError: if one of them exists, or cannot be written.
        """
        paths = [folder / name for name in (*self.tables, *([DATA] if self.arrays else []))]
        for path in paths:
            if path.exists():
                raise ConfigError(f"--out {folder}: has {path.name}. Choose another folder.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, rows in self.tables.items():
                csv_file.write(folder / name, rows)
            if self.arrays:
                with written(folder / DATA) as file:
                    np.savez_compressed(file, **self.arrays)
        except OSError as error:
            raise ConfigError(f"--out {folder}: cannot be written ({error.strerror}).") from None
        return paths


def ids_of(path: str) -> tuple[str, ...]:
    """Ids of the clients of data: a file ``clients.npz``, or a folder of one file a client.

    Raises:
      ConfigError: if the data cannot be read, or does not say whose the samples are.
    """
    ids = Files(path=path).load().client_ids
    if not ids:
        raise ConfigError(f"--ids {path}: must have the array clients, and has none.")
    return ids


def content_of(path: pathlib.Path) -> bytes:
    """The content of a file.

    Raises:
      ConfigError: if it is no regular file, or cannot be read.
    """
    check_regular("FILE", str(path))
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"FILE = {str(path)!r}: cannot be read ({error.strerror}).") from None


def json_of(path: pathlib.Path) -> Any:
    """What a JSON file holds.

    Raises:
      ConfigError: if it cannot be read, or is damaged.
    """
    try:
        return json.loads(content_of(path))
    except (ValueError, RecursionError) as error:
        refuse(path, f"must be a whole JSON file ({error})")


def parsed(
    path: pathlib.Path,
    entries: Iterable[tuple[Any, Any]],
    parse: Callable[[Any], T],
    rule: str,
) -> Iterator[T]:
    """What ``parse`` makes of each entry of a file; ``rule`` is what an entry must be.

    Raises:
      ConfigError: with the name of the first entry that ``parse`` cannot read.
    """
    for name, entry in entries:
        try:
            yield parse(entry)
        except WRONG:
            # What a pickle nests could take forever to print.
            where = shown(name) if isinstance(name, str | int) else "an entry"
            refuse(path, f"{where}: {rule}")


def number(value: Any) -> float:
    """A finite number. Raises ValueError for all else, texts and truth values too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    if not math.isfinite(value):
        raise ValueError
    return float(value)


def positive(value: Any) -> float:
    """A finite number > 0. Raises ValueError for all else."""
    if number(value) <= 0:
        raise ValueError
    return float(value)


def refuse(path: pathlib.Path, rule: str) -> NoReturn:
    """Raise ConfigError: what a file must be, and is not."""
    raise ConfigError(f"FILE = {str(path)!r}: {rule}.")
