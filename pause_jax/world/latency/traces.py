"""Latencies drawn from measured seconds: a CSV file, or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.base import source_file
from pause_jax.base.client_ids import check_enough
from pause_jax.base.struct import ConfigError, Sizes, static
from pause_jax.world.latency.base import Latency
from pause_jax.world.latency.measured import LARGEST, Measured, parse


class _Table(NamedTuple):
    """Measurements of clients 0, ..., C - 1, one client after the other, each ascending."""

    seconds: NDArray[np.float64]  # [N]
    # Bool [N], where the client did not answer; its seconds are those before it.
    dropped: NDArray[np.bool_]
    # [N], the same of each client in the order of measurement.
    as_measured: NDArray[np.float64]
    dropped_then: NDArray[np.bool_]
    first: NDArray[np.int32]  # [C], where a client's begin
    size: NDArray[np.int32]  # [C], how many it has
    # [N], sum of ``seconds`` and of 1 / ``seconds`` from here to the client's last. In float64, so
    # that the mean over many is not rounded on the way.
    sum_from: NDArray[np.float64]
    inverse_from: NDArray[np.float64]
    ids: tuple[str, ...]  # of the clients of a file; empty for arrays


# What was read or made, by digest: a traced program cannot read a file. For ``played`` a client has
# a row for each round of the file.
_TABLES: dict[str, _Table] = {}
_PLAYED: dict[str, _Table] = {}
# Rows of a table at most.
_MOST = 10**8


class Traces(Latency):
    """Latency = max(tau_min, one of the client's own measurements).

    The measurements are a CSV file with the header ``client,seconds`` and a line for each: the
    client's id, a number or a name, and seconds > 0; or a ``.parquet`` file with these columns.
    Client k is the k-th id in natural order, and has the data of the same id (partition
    ``natural``); without such data ids must be names, or numbers 0, 1, ... without gaps. A column
    ``round`` or ``time`` gives the order of a client's measurements; by default that of the file.
    Clients may have different numbers of them; clients beyond ``num_clients`` are not used. An
    empty cell of seconds is a drop-out: the client, if chosen, does not answer, and the server
    waits as long as the client took the time before. Expectations are exact means over all lines,
    a drop-out with these seconds. The file is read when a run starts. For arrays: :meth:`of`.

    Attributes:
      order: ``drawn``: uniformly each round, so that rounds are independent. ``played``: with the
        column ``round``, round t has the lines of the t-th round since the first of the file, and
        a client without a line takes as long as the time before (or, before its first, as then).
        Otherwise round t has the client's t-th measurement. After the last comes the first again.
        A round's expectation is what came, and the genie knows it (static).
      path: the file; if relative, to the working directory (static).
      digest: SHA-256 of the measurements, recorded in results. Filled in when a run starts; a file
        of another digest is refused (static).
    """

    name: ClassVar[str] = "traces"
    summary: ClassVar[str] = "measured seconds of each client, drawn again (CSV)"

    order: str = static(default="drawn", choices=("drawn", "played"))
    path: str = static(default="")
    digest: str = static(default="")

    @classmethod
    def of(cls, seconds: Sequence[ArrayLike]) -> Self:
        """The model of measurements at hand: for each client an array [n_k] of seconds > 0.

        Its config file has the digest alone, which another process cannot run: write a CSV file.

        Raises:
          ConfigError: for a client without measurements, or seconds that are none.
        """
        rows = []
        for client, measured in enumerate(seconds):
            try:
                row = np.ravel(np.asarray(measured, np.float64))
            except (TypeError, ValueError):
                row = np.zeros(0)
            if not row.size or not ((row > 0) & (row <= LARGEST)).all():
                raise ConfigError(
                    f"seconds[{client}] = {measured!r}: must be numbers, at least one, and all "
                    "finite and > 0 seconds."
                )
            rows.append(row)
        if not rows:
            raise ConfigError("seconds is empty: give at least one client's measurements.")
        clients = np.repeat(np.arange(len(rows)), list(map(len, rows)))
        flat = np.concatenate(rows)
        content = clients.astype("<i8").tobytes() + flat.astype("<f8").tobytes()
        digest = hashlib.sha256(content).hexdigest()
        _TABLES.setdefault(digest, _table(clients, flat))
        _PLAYED.setdefault(digest, _TABLES[digest])
        return cls(digest=digest)

    @property
    def varies(self) -> bool:
        return self.order == "played"

    def check(self, path: str, sizes: Sizes) -> None:
        table = self.loaded()._measured
        where = f"{path}.path = {self.path!r}" if self.path else f"{path}: Traces.of(...)"
        fix = "Measure more clients"
        check_enough(where, "measurement", len(table.size), table.ids, sizes.num_clients, fix)

    def loaded(self) -> Self:
        if not self.path:
            if self.digest in _TABLES:
                return self
            raise ConfigError(
                "latency.path = '': must be a CSV file with the header client,seconds"
                + (", as the arrays of this digest are not at hand." if self.digest else ".")
            )

        def table(content: bytes) -> _Table:
            measured = parse(content, self.path)
            if self.order == "played" and measured.by_round:
                measured = _every_round(measured, f"latency.path = {self.path!r}")
            return _table(measured.client, measured.seconds, measured.ids)

        digest = source_file.parsed(self._tables, "latency", self.path, self.digest, table)
        return self.replace(digest=digest)

    @property
    def client_ids(self) -> tuple[str, ...]:
        return self._measured.ids

    @property
    def _tables(self) -> dict[str, _Table]:
        return _PLAYED if self.order == "played" else _TABLES

    @property
    def _measured(self) -> _Table:
        tables = self._tables
        return tables[self.digest if self.digest in tables else self.loaded().digest]

    def _drawn(self, key: Array, num_clients: int) -> Array:
        """Places of one line of each client."""
        table = self._measured
        size = jnp.asarray(table.size[:num_clients])
        first = jnp.asarray(table.first[:num_clients])
        return first + jax.random.randint(key, (num_clients,), 0, size)

    def _played(self, round: Array, num_clients: int) -> Array:
        """Places of each client's line of round t, in the order of measurement."""
        table = self._measured
        size = jnp.asarray(table.size[:num_clients])
        return jnp.asarray(table.first[:num_clients]) + (round - 1) % size

    def sample(self, key: Array, num_clients: int) -> Array:
        seconds = jnp.asarray(self._measured.seconds)[self._drawn(key, num_clients)]
        return jnp.maximum(self.min_latency, seconds)

    def at(self, key: Array, round: Array, num_clients: int) -> Array:
        if self.order == "drawn":
            return self.sample(key, num_clients)
        seconds = jnp.asarray(self._measured.as_measured)[self._played(round, num_clients)]
        return jnp.maximum(self.min_latency, seconds)

    @property
    def drops(self) -> bool:
        return bool(self._measured.dropped.any())

    def dropped(self, key: Array, round: Array, num_clients: int) -> Array:
        table = self._measured
        if self.order == "drawn":
            return jnp.asarray(table.dropped)[self._drawn(key, num_clients)]
        return jnp.asarray(table.dropped_then)[self._played(round, num_clients)]

    def expected_speed_at(self, round: Array, num_clients: int) -> Array:
        if self.order == "drawn":
            return self.expected_speed(num_clients)
        return self.min_latency / self.at(jax.random.key(0), round, num_clients)

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
        return (low - first) / size, rest / size.astype(rest.dtype)


def _table(
    client: NDArray[np.int64], seconds: NDArray[np.float64], ids: tuple[str, ...] = ()
) -> _Table:
    """The table of clients without gaps and their seconds, in the order of measurement."""
    order, size = np.argsort(client, kind="stable"), np.bincount(client)
    first = np.cumsum(size) - size
    then = np.isnan(seconds[order])
    filled = np.concatenate([_filled(part) for part in np.split(seconds[order], first[1:])])
    place = np.lexsort((filled, client[order]))
    sum_from, inverse_from = (
        np.concatenate([np.cumsum(part[::-1])[::-1] for part in np.split(values, first[1:])])
        for values in (filled[place], 1 / filled[place])
    )
    return _Table(
        seconds=filled[place],
        dropped=then[place],
        as_measured=filled,
        dropped_then=then,
        first=first.astype(np.int32),
        size=size.astype(np.int32),
        sum_from=sum_from,
        inverse_from=inverse_from,
        ids=ids,
    )


def _filled(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds whose gaps have those before them, or the first ones."""
    known = np.flatnonzero(np.isfinite(seconds))
    before = np.searchsorted(known, np.arange(seconds.size), "right") - 1
    return seconds[known[np.maximum(before, 0)]]


def _every_round(data: Measured, name: str) -> Measured:
    """A line of each client for every round from the first of the file to its last.

    Raises:
      ConfigError: if the rounds are too many.
    """
    if data.when is None:
        return data
    place = (data.when - data.when.min()).astype(np.int64)
    rounds, clients = int(place.max()) + 1, int(data.client.max()) + 1
    if rounds * clients > _MOST:
        raise ConfigError(
            f"{name}: has rounds from {data.when.min():.0f} to {data.when.max():.0f}, more than "
            f"{_MOST:,} lines of {clients} clients. Number them 1, 2, ..., or call the column time."
        )
    cell = data.client * rounds + place
    seconds = np.full(rounds * clients, np.nan)
    seconds[cell] = data.seconds
    gaps = np.ones(seconds.size, bool)
    gaps[cell] = False
    by_client = seconds.reshape(clients, rounds)
    seconds[gaps] = np.stack([_filled(row) for row in by_client]).ravel()[gaps]
    everyone = np.repeat(np.arange(clients), rounds)
    return data._replace(client=everyone, seconds=seconds, when=None)
