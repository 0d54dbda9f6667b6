"""Latencies drawn from measured seconds: a CSV file, or arrays."""

from __future__ import annotations

import csv
import hashlib
import pathlib
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.latency.base import Latency
from pause_jax.struct import ConfigError, Sizes, static

_HEADER = ["client", "seconds"]
_LARGEST = float(np.finfo(np.float32).max)


class _Table(NamedTuple):
    """Measurements of clients 0, ..., C - 1, one client after the other, each in ascending order.

    Attributes:
      seconds: [N].
      first, size: int [C], where a client's begin, and how many there are.
      sum_from, inverse_from: [N], sum of ``seconds`` and of 1 / ``seconds`` from here to the
        client's last. In float64, so that the mean over many is not rounded on the way.
    """

    seconds: NDArray[np.float64]
    first: NDArray[np.int32]
    size: NDArray[np.int32]
    sum_from: NDArray[np.float64]
    inverse_from: NDArray[np.float64]


# What was read or made, by digest: a traced program cannot read a file.
_TABLES: dict[str, _Table] = {}


class Traces(Latency):
    """Latency = max(tau_min, one of the client's own measurements), drawn uniformly each round.

    The measurements are a CSV file with the header ``client,seconds`` and a line for each: the
    client, 0, 1, ... without gaps, and seconds > 0, in any order. Clients may have different
    numbers of them; those of clients beyond ``num_clients`` are not used. Expectations are exact
    means over them. The file is read when a run starts. For arrays: :meth:`of`.

    Attributes:
      path: the file; if relative, to the working directory (static).
      digest: SHA-256 of the measurements, by which a result says what it was run with. Filled in
        when a run starts; if it is given, another file is refused (static).
    """

    name: ClassVar[str] = "traces"
    summary: ClassVar[str] = "measured seconds of each client, drawn again (CSV)"

    path: str = static(default="")
    digest: str = static(default="")

    @classmethod
    def of(cls, seconds: Sequence[ArrayLike]) -> Self:
        """The model of measurements at hand: for each client an array [n_k] of seconds > 0.

        Its config file has the digest alone, which another process cannot run.

        Raises:
          ConfigError: for a client without measurements, or seconds that are none.
        """
        rows = []
        for client, measured in enumerate(seconds):
            try:
                row = np.ravel(np.asarray(measured, np.float64))
            except (TypeError, ValueError):
                raise ConfigError(f"seconds[{client}] = {measured!r}: must be numbers.") from None
            if not row.size or not ((row > 0) & (row <= _LARGEST)).all():
                raise ConfigError(
                    f"seconds[{client}] = {measured!r}: must be at least one measurement, and all "
                    "finite and > 0 seconds."
                )
            rows.append(row)
        if not rows:
            raise ConfigError("seconds is empty: give at least one client's measurements.")
        clients, flat = np.repeat(np.arange(len(rows)), list(map(len, rows))), np.concatenate(rows)
        content = clients.astype("<i8").tobytes() + flat.astype("<f8").tobytes()
        digest = hashlib.sha256(content).hexdigest()
        _TABLES.setdefault(digest, _table(clients, flat))
        return cls(digest=digest)

    def check(self, path: str, sizes: Sizes) -> None:
        measured = len(_TABLES[self.loaded().digest].size)
        if measured < sizes.num_clients:
            where = f"{path}.path = {self.path!r}" if self.path else f"{path}: Traces.of(...)"
            raise ConfigError(
                f"{where}: has measurements of {measured} clients, and num_clients = "
                f"{sizes.num_clients}. Measure more clients, or simulate at most {measured}."
            )

    def loaded(self) -> Self:
        if not self.path:
            if self.digest in _TABLES:
                return self
            raise ConfigError(
                "latency.path = '': must be a CSV file with the header client,seconds"
                + (", as the arrays of this digest are not at hand." if self.digest else ".")
            )
        try:
            content = pathlib.Path(self.path).read_bytes()
        except OSError as error:
            where = f"latency.path = {self.path!r}"
            raise ConfigError(f"{where}: cannot be read ({error.strerror}).") from None
        digest = hashlib.sha256(content).hexdigest()
        if self.digest not in ("", digest):
            raise ConfigError(
                f"latency.digest = {self.digest!r}: must be that of {self.path!r}, which is "
                f"{digest!r}. The file has changed since; set latency.digest to '' to take it as "
                "it is."
            )
        if digest not in _TABLES:
            _TABLES[digest] = _table(*_parsed(content, self.path))
        return self.replace(digest=digest)

    @property
    def _measured(self) -> _Table:
        digest = self.digest if self.digest in _TABLES else self.loaded().digest
        return _TABLES[digest]

    def sample(self, key: Array, num_clients: int) -> Array:
        table = self._measured
        size = jnp.asarray(table.size[:num_clients])
        drawn = table.first[:num_clients] + jax.random.randint(key, (num_clients,), 0, size)
        return jnp.maximum(self.min_latency, jnp.asarray(table.seconds)[drawn])

    def expected_speed(self, num_clients: int) -> Array:
        cut, rest = self._cut(num_clients, self._measured.inverse_from)
        return cut + self.min_latency * rest

    def expected_latency(self, num_clients: int) -> Array:
        cut, rest = self._cut(num_clients, self._measured.sum_from)
        return self.min_latency * cut + rest

    def _cut(self, num_clients: int, sums: NDArray[np.float64]) -> tuple[Array, Array]:
        """Share of measurements below tau_min, and the sum over the others by all, float [K]."""
        table = self._measured
        seconds, first = jnp.asarray(table.seconds), jnp.asarray(table.first[:num_clients])
        size = jnp.asarray(table.size[:num_clients])
        # The first that is not below, by bisection.
        low, high = first, first + size
        for _ in range(int(table.size.max()).bit_length()):
            middle = (low + high) // 2
            below = (low < high) & (seconds[middle] < self.min_latency)
            low, high = jnp.where(below, middle + 1, low), jnp.where(below, high, middle)
        # Where all are below, what stands there is the next client's.
        rest = jnp.where(low < first + size, jnp.asarray(sums)[low], 0.0)
        return (low - first) / size, rest / size


def _table(client: NDArray[np.int64], seconds: NDArray[np.float64]) -> _Table:
    """The table of clients without gaps and their seconds, in any order."""
    order = np.lexsort((seconds, client))
    seconds, size = seconds[order], np.bincount(client)
    first = np.cumsum(size) - size
    sums = [
        np.concatenate([np.cumsum(part[::-1])[::-1] for part in np.split(values, first[1:])])
        for values in (seconds, 1 / seconds)
    ]
    return _Table(seconds, first.astype(np.int32), size.astype(np.int32), *sums)


def _parsed(content: bytes, path: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(client, seconds) of every line of a CSV file.

    Raises:
      ConfigError: naming the first line that is wrong.
    """

    def wrong(line: int, row: list[str], rule: str) -> ConfigError:
        text = ",".join(row)
        return ConfigError(f"latency.path = {path!r}, line {line}, {text!r}: {rule}.")

    try:
        rows = csv.reader(content.decode("utf-8-sig").splitlines())
    except UnicodeDecodeError:
        raise ConfigError(f"latency.path = {path!r}: must be a CSV file in UTF-8.") from None
    header = [word.strip() for word in next(rows, [])]
    if header != _HEADER:
        raise wrong(1, header, "must be the header client,seconds")
    client, seconds = [], []
    for row in rows:
        if not row:
            continue
        try:
            number, text = row
            client.append(int(number))
            seconds.append(float(text))
        except ValueError:
            rule = "must be a whole number (the client) and a number (seconds)"
            raise wrong(rows.line_num, row, rule) from None
        if client[-1] < 0:
            raise wrong(rows.line_num, row, "clients are numbered 0, 1, ...")
        if not 0 < seconds[-1] <= _LARGEST:
            raise wrong(rows.line_num, row, "seconds must be finite and > 0")
    known = sorted(set(client))
    if known != list(range(len(known))) or not known:
        gap = next((place for place, number in enumerate(known) if place != number), 0)
        raise ConfigError(
            f"latency.path = {path!r}: has no measurement of client {gap}. Clients are numbered "
            "0, 1, ... without gaps."
        )
    return np.asarray(client), np.asarray(seconds)
