"""Request and result of an import, and the checks that all importers share."""

from __future__ import annotations

import csv
import hashlib
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from pause_jax.base.source_file import written
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.learning import Files

T = TypeVar("T")
Rows = Iterable[Iterable[Any]]
DEVICES, FLEET, INTERVALS, DATA = "devices.csv", "fleet.csv", "intervals.csv", "clients.npz"
# Exceptions that an entry of another form than expected raises.
WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Request(NamedTuple):
    """Arguments of an import.

    Attributes:
      paths: files, as they were downloaded.
      clients: maximum number of clients, drawn by ``seed``; None for all.
      seed: of that draw.
      ids: new ids of the clients; empty for 0, 1, ... Data has its own ids.
      columns: the library's name of a column -> the file's.
    """

    paths: tuple[pathlib.Path, ...]
    clients: int | None = None
    seed: int = 0
    ids: tuple[str, ...] = ()
    columns: Mapping[str, str] = MappingProxyType({})

    @property
    def path(self) -> pathlib.Path:
        """File of a source that has one; raises ConfigError for several."""
        if len(self.paths) > 1:
            refuse(self.paths[1], "must be imported by itself, into a folder of its own")
        return self.paths[0]

    def places(self, known: int) -> NDArray[np.int64]:
        """Return places of the clients to keep, in the order of the file.

        Raises:
          ConfigError: if the file has fewer clients than there are ids.
        """
        if len(self.ids) > known:
            raise ConfigError(
                f"--ids: has {len(self.ids)} clients; must be at most {known}, as many as the file."
            )
        number = len(self.ids) or min(self.clients or known, known)
        if number == known:
            return np.arange(known)
        return np.sort(np.random.default_rng(self.seed).choice(known, number, replace=False))

    def kept(self, users: Collection[str]) -> set[str]:
        """Return the users to keep: by a lot for each, so files can be read one after the other.

        Raises:
          ConfigError: if other ids are asked for.
        """
        if self.ids:
            raise ConfigError("--ids: the clients of this file have ids. Leave --ids out.")

        def lot(user: str) -> bytes:
            return hashlib.sha256(f"{self.seed} {user}".encode()).digest()

        return set(sorted(users, key=lot)[: self.clients])


class Imported(NamedTuple):
    """Result of an import.

    Attributes:
      tables: rows of each CSV file, headings first, by the file's name.
      arrays: of ``clients.npz``; empty for none.
      notes: sentences for the user.
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
            if os.path.lexists(path):
                raise ConfigError(f"--out {folder}: has {path.name}. Choose another folder.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, rows in self.tables.items():
                with (folder / name).open("w", newline="", encoding="utf-8") as table:
                    csv.writer(table).writerows(rows)
            if self.arrays:
                with written(folder / DATA) as file:
                    np.savez_compressed(file, **self.arrays)
        except OSError as error:
            raise ConfigError(f"--out {folder}: cannot be written ({error.strerror}).") from None
        return paths


def ids_of(path: str) -> tuple[str, ...]:
    """Return the client ids of data: a file ``clients.npz``, or a folder of one file a client.

    Raises:
      ConfigError: if the data cannot be read, or does not say whose the samples are.
    """
    ids = Files(path=path).load().client_ids
    if not ids:
        raise ConfigError(f"--ids {path}: must have the array clients, and has none.")
    return ids


def parsed(
    path: pathlib.Path,
    entries: Iterable[tuple[Any, Any]],
    parse: Callable[[Any], T],
    rule: str,
) -> Iterator[T]:
    """Yield the parsed entries of a file; ``rule`` says what an entry must be.

    Raises:
      ConfigError: with the name of the first entry that ``parse`` cannot read.
    """
    for name, entry in entries:
        try:
            yield parse(entry)
        except WRONG:
            # Printing what a pickle nests could take forever.
            where = shown(name) if isinstance(name, str | int) else "an entry"
            refuse(path, f"{where}: {rule}")


def refuse(path: pathlib.Path, rule: str) -> NoReturn:
    """Raise ConfigError: a file breaks a rule."""
    raise ConfigError(f"FILE = {str(path)!r}: {rule}.")
