"""Arguments and result of an import, and functions shared by the importers."""

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

from pause_jax.base.source_file import os_errors_as, written
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.learning import Files

T = TypeVar("T")
Rows = Iterable[Iterable[Any]]
DEVICES, INTERVALS, DATA = "devices.csv", "intervals.csv", "clients.npz"
# Exceptions that parsing a malformed entry may raise.
WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Request(NamedTuple):
    """Arguments for an import.

    Attributes:
      paths: paths of the downloaded files.
      clients: maximum number of clients to draw at random; None for all clients.
      seed: seed for drawing the clients.
      ids: client ids to assign (default: the ids in the file or, if it has none, 0, 1, ...).
      columns: column names of the file, keyed by the library's column names.
    """

    paths: tuple[pathlib.Path, ...]
    clients: int | None = None
    seed: int = 0
    ids: tuple[str, ...] = ()
    columns: Mapping[str, str] = MappingProxyType({})

    @property
    def path(self) -> pathlib.Path:
        """Path of the single downloaded file. Raises ConfigError if there are several files."""
        if len(self.paths) > 1:
            refuse(self.paths[1], "must be imported separately, into another folder")
        return self.paths[0]

    def places(self, known: int) -> NDArray[np.int64]:
        """Return the positions [n] of the clients to keep, in file order.

        ``known`` is the number of clients in the file. Raises ConfigError if ``len(ids) > known``.
        """
        if len(self.ids) > known:
            raise ConfigError(
                f"--ids: has {len(self.ids)} clients, but the file has {known}. Pass ids of at "
                f"most {known} clients."
            )
        number = len(self.ids) or min(self.clients or known, known)
        if number == known:
            return np.arange(known)
        return np.sort(np.random.default_rng(self.seed).choice(known, number, replace=False))

    def kept(self, users: Collection[str]) -> set[str]:
        """Return up to ``clients`` users, choosing those with the smallest seeded hashes.

        Selecting users after each file gives the same result as selecting once at the end. Raises
        ConfigError if the request has ``ids``.
        """
        if self.ids:
            raise ConfigError(
                "--ids: must not be set, because this file contains client ids. Remove --ids."
            )

        def lot(user: str) -> bytes:
            return hashlib.sha256(f"{self.seed} {user}".encode()).digest()

        return set(sorted(users, key=lot)[: self.clients])


class Imported(NamedTuple):
    """Result of an import.

    Attributes:
      tables: rows of each CSV file, header first, keyed by file name.
      arrays: arrays of ``clients.npz``; empty if the import does not write this file.
      notes: notes for the user, in full sentences.
    """

    tables: dict[str, Rows]
    arrays: dict[str, Any]
    notes: tuple[str, ...] = ()

    def write(self, folder: pathlib.Path) -> list[pathlib.Path]:
        """Write all files to a folder, creating it if missing, and return their paths.

        Raises:
          ConfigError: if a file already exists or cannot be written.
        """
        paths = [folder / name for name in (*self.tables, *([DATA] if self.arrays else []))]
        for path in paths:
            if os.path.lexists(path):
                raise ConfigError(
                    f"--out {folder}: already contains {path.name}. Choose another folder."
                )
        with os_errors_as(f"--out {folder}: cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            for name, rows in self.tables.items():
                with (folder / name).open("w", newline="", encoding="utf-8") as table:
                    csv.writer(table).writerows(rows)
            if self.arrays:
                with written(folder / DATA) as file:
                    np.savez_compressed(file, **self.arrays)
        return paths


def ids_of(path: str) -> tuple[str, ...]:
    """Return the client ids in a ``clients.npz`` file, or in a folder with one file per client.

    Raises:
      ConfigError: if the data cannot be read or has no client ids.
    """
    ids = Files(path=path).load().client_ids
    if not ids:
        raise ConfigError(f"--ids {path}: must contain an array named 'clients'.")
    return ids


def parsed(
    path: pathlib.Path,
    entries: Iterable[tuple[Any, Any]],
    parse: Callable[[Any], T],
    rule: str,
) -> Iterator[T]:
    """Yield the parsed entries of a file. ``rule`` describes a valid entry.

    Raises:
      ConfigError: if ``parse`` rejects an entry. The message contains the entry name and ``rule``.
    """
    for name, entry in entries:
        try:
            yield parse(entry)
        except WRONG:
            # Formatting a deeply nested object from a pickle could take forever.
            where = shown(name) if isinstance(name, str | int) else "an entry"
            refuse(path, f"{where}: {rule}")


def refuse(path: pathlib.Path, rule: str) -> NoReturn:
    """Raise a ConfigError that states the file's path and the violated ``rule``."""
    raise ConfigError(f"FILE = {str(path)!r}: {rule}.")
