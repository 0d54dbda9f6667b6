"""Latency model that draws or replays measurements from a CSV file or from arrays."""

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
    """Measurements of clients 0, ..., C - 1, sorted by client and then by seconds."""

    seconds: NDArray[np.float64]  # [N]
    # Bool [N], True for drop-outs, whose ``seconds`` repeat the client's previous measurement.
    dropped: NDArray[np.bool_]
    # [N], the same two arrays with each client's entries in measurement order.
    as_measured: NDArray[np.float64]
    dropped_then: NDArray[np.bool_]
    first: NDArray[np.int32]  # [C], index of the client's first entry
    size: NDArray[np.int32]  # [C], number of the client's entries
    # [N], sums of ``seconds`` and of 1 / ``seconds`` from each entry to the client's last entry,
    # in float64 to avoid rounding errors in means over many entries.
    sum_from: NDArray[np.float64]
    inverse_from: NDArray[np.float64]
    ids: tuple[str, ...]  # client ids from the file (empty for arrays)


# Tables loaded before tracing, keyed by digest and order. Traced programs cannot read files.
_TABLES: dict[str, _Table] = {}
# Maximum number of rows in a table with one row per client and round.
_MOST = 10**8


class Traces(Latency):
    """Latency = max(tau_min, one of the client's measurements).

    The CSV file has the header ``client,seconds`` and one line per measurement, with the client's
    id (a number or a name) and a latency > 0 in seconds. Clients are numbered 0, 1, ... in the
    natural order of their ids. With the ``natural`` partition, clients and data are matched by id.
    If the data has no ids, the file's ids must be names, or the numbers 0, 1, ... without gaps.
    Measurements are ordered by the ``round`` or ``time`` column if present, otherwise by line.
    Clients beyond ``num_clients`` are ignored. An empty ``seconds`` cell marks a drop-out, in which
    the client does not answer. The server then waits for the duration of the client's previous
    measurement, or of the first measurement if there is no previous one. Expectations are exact
    means over all measurements and waiting times. Use :meth:`of` for arrays.

    Attributes:
      order: rule for choosing each round's measurement (static). ``drawn`` draws a measurement
        uniformly and independently in each round. ``played`` replays the rounds of a file with a
        ``round`` column, starting with the first. A client without a line for a round repeats its
        previous measurement, or its first measurement if there is no previous one. Without a
        ``round`` column, round t replays the client's t-th measurement. The replay restarts after
        the last entry. With ``played``, the genie knows each round's latencies in advance.
      path: file path (static), absolute or relative to the working directory.
      digest: SHA-256 of the measurements (static), recorded in results and filled in when a run
        starts. A file with a different digest is rejected.
    """

    name: ClassVar[str] = "traces"
    summary: ClassVar[str] = "each client's measured latencies, resampled or replayed (CSV)"

    order: str = static(default="drawn", choices=("drawn", "played"))
    path: str = static(default="")
    digest: str = static(default="")

    @classmethod
    def of(cls, seconds: Sequence[ArrayLike]) -> Self:
        """Build the model from one array [n_k] of positive latencies (in seconds) per client.

        A config file stores only the digest. Use a CSV file to run the config in another process.

        Raises:
          ConfigError: if ``seconds`` or an array is empty, or a latency is not a finite number > 0.
        """
        rows = []
        for client, measured in enumerate(seconds):
            try:
                row = np.ravel(np.asarray(measured, np.float64))
            except (TypeError, ValueError):
                row = np.zeros(0)
            if not row.size or not ((row > 0) & (row <= LARGEST)).all():
                raise ConfigError(
                    f"seconds[{client}] = {measured!r}: must be one or more finite numbers > 0, "
                    "in seconds."
                )
            rows.append(row)
        if not rows:
            raise ConfigError("seconds is empty: must have measurements for at least one client.")
        clients = np.repeat(np.arange(len(rows)), list(map(len, rows)))
        flat = np.concatenate(rows)
        content = clients.astype("<i8").tobytes() + flat.astype("<f8").tobytes()
        digest = hashlib.sha256(content).hexdigest()
        _TABLES[digest + "drawn"] = _TABLES[digest + "played"] = _table(clients, flat)
        return cls(digest=digest)

    @property
    def varies(self) -> bool:
        return self.order == "played"

    def check(self, path: str, sizes: Sizes) -> None:
        table = self.loaded()._measured
        where = f"{path}.path = {self.path!r}" if self.path else f"{path}: Traces.of(...)"
        fix = "Add measurements for the missing clients"
        check_enough(where, "measurement", len(table.size), table.ids, sizes.num_clients, fix)

    def loaded(self) -> Self:
        if not self.path:
            if self.digest + self.order in _TABLES:
                return self
            raise ConfigError(
                "latency.path = '': must be a CSV file with the header client,seconds"
                + (", because the arrays with this digest are not loaded." if self.digest else ".")
            )

        def table(content: bytes) -> _Table:
            measured = parse(content, self.path)
            if self.order == "played" and measured.by_round:
                measured = _every_round(measured, f"latency.path = {self.path!r}")
            return _table(measured.client, measured.seconds, measured.ids)

        source = _TABLES, "latency", self.path, self.digest
        return self.replace(digest=source_file.parsed(*source, table, part=self.order))

    @property
    def client_ids(self) -> tuple[str, ...]:
        return self._measured.ids

    @property
    def _measured(self) -> _Table:
        known = self.digest + self.order
        return _TABLES[known if known in _TABLES else self.loaded().digest + self.order]

    def _drawn(self, key: Array, num_clients: int) -> Array:
        """Return the index of a random entry for each client, int [K]."""
        table = self._measured
        size = jnp.asarray(table.size[:num_clients])
        first = jnp.asarray(table.first[:num_clients])
        return first + jax.random.randint(key, (num_clients,), 0, size)

    def _played(self, round: Array, num_clients: int) -> Array:
        """Return each client's index into ``as_measured`` for round t, int [K]."""
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
        """Return (share of entries < tau_min, partial mean over the other entries), [K] each."""
        table = self._measured
        seconds, first = jnp.asarray(table.seconds), jnp.asarray(table.first[:num_clients])
        size = jnp.asarray(table.size[:num_clients])
        # Bisect for the first measurement >= tau_min.
        low, high = first, first + size
        for _ in range(int(table.size.max()).bit_length()):
            middle = (low + high) // 2
            below = (low < high) & (seconds[middle] < self.min_latency)
            low, high = jnp.where(below, middle + 1, low), jnp.where(below, high, middle)
        # If all entries are below tau_min, ``low`` is the first index of the next client.
        rest = jnp.where(low < first + size, jnp.asarray(sums)[low], 0.0)
        return (low - first) / size, rest / size.astype(rest.dtype)


def _table(
    client: NDArray[np.int64], seconds: NDArray[np.float64], ids: tuple[str, ...] = ()
) -> _Table:
    """Build a table from client numbers and latencies (NaN for drop-outs) in measurement order."""
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
    """Replace each NaN with the previous finite value, or else with the first finite value."""
    known = np.flatnonzero(np.isfinite(seconds))
    before = np.searchsorted(known, np.arange(seconds.size), "right") - 1
    return seconds[known[np.maximum(before, 0)]]


def _every_round(data: Measured, name: str) -> Measured:
    """Expand measurements to one entry per client and round, from the first to the last round."""
    if data.when is None:
        return data
    place = (data.when - data.when.min()).astype(np.int64)
    rounds, clients = int(place.max()) + 1, int(data.client.max()) + 1
    if rounds * clients > _MOST:
        raise ConfigError(
            f"{name}: has rounds from {data.when.min():.0f} to {data.when.max():.0f}, i.e. more "
            f"than {_MOST:,} entries for {clients} clients. Number rounds 1, 2, ..., or rename "
            "the column to time."
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
