"""Availability trace that reads connection intervals from a CSV file or from arrays."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from pause_jax.base import source_file
from pause_jax.base.client_ids import check_enough, client_id, numbered
from pause_jax.base.memory import check_memory
from pause_jax.base.struct import ConfigError, Sizes, number, static
from pause_jax.world.availability.base import AvailabilityTrace


class _Table(NamedTuple):
    """All clients' connection intervals."""

    times: NDArray[np.float64]  # [clients, intervals, 2], padded with empty intervals
    ids: tuple[str, ...]  # client ids (empty for arrays)


# Latest allowed interval start, in seconds. float32 represents every integer up to this value.
LATEST = 2**24
# Tables loaded before tracing, keyed by digest. Traced programs cannot read files.
_TABLES: dict[str, _Table] = {}


class Intervals(AvailabilityTrace):
    """Availability trace in which each client is online during its intervals [start, end).

    The CSV file has the header ``client,start,end`` and one line per interval, with the client's id
    (a number or a name) and the times 0 <= start < end in simulated seconds. A client's intervals
    may overlap. Clients are numbered as in :class:`pause_jax.latency.Traces`, in the natural order
    of their ids. Clients beyond ``num_clients`` are ignored. Use :meth:`of` for arrays.

    Attributes:
      period: seconds after which all intervals repeat, such as 86,400 for a day, or None if they
        do not repeat. An interval may extend beyond the period.
      path: file path (static), absolute or relative to the working directory.
      digest: SHA-256 of the intervals (static), filled in when a run starts. A file with a
        different digest is rejected.
    """

    name: ClassVar[str] = "intervals"
    summary: ClassVar[str] = "each client's connection intervals (CSV)"

    period: float | None = number(default=None, above=0, optional=True)
    path: str = static(default="")
    digest: str = static(default="")

    @classmethod
    def of(
        cls, intervals: Sequence[Iterable[tuple[float, float]]], period: float | None = None
    ) -> Self:
        """Build a trace from each client's intervals (start, end), in seconds.

        A config file stores only the digest. Use a CSV file to run the config in another process.

        Raises:
          ConfigError: if a client has no intervals, or an interval is invalid.
        """
        rows = [
            (client, *_checked(f"intervals[{client}]", pair))
            for client, pairs in enumerate(intervals)
            for pair in pairs
        ]
        missing = set(range(len(intervals))) - {client for client, *_ in rows}
        if missing or not rows:
            raise ConfigError(
                "intervals: must have at least one interval per client, but client "
                f"{min(missing, default=0)} has none."
            )
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()
        _TABLES[digest] = _table(np.asarray([client for client, *_ in rows]), rows)
        return cls(period=period, digest=digest)

    def check(self, path: str, sizes: Sizes) -> None:
        table = _TABLES[self.loaded().digest]
        where = f"{path}.path = {self.path!r}" if self.path else f"{path}: Intervals.of(...)"
        fix = "Add intervals for the missing clients"
        check_enough(where, "interval", len(table.times), table.ids, sizes.num_clients, fix)

    def loaded(self) -> Self:
        where = f"availability_trace.path = {self.path!r}"
        if not self.path:
            if self.digest in _TABLES:
                return self
            raise ConfigError(f"{where}: must be a CSV file with the header client,start,end.")

        def parse(content: bytes) -> _Table:
            header, lines = source_file.table(where, content)
            if header != ["client", "start", "end"]:
                raise ConfigError(f"{where}: must have the header client,start,end.")
            rows = [_row(f"{where}, {place}", line) for place, line in lines]
            if not rows:
                raise ConfigError(f"{where}: has no intervals. Add at least one line per client.")
            ids, clients = numbered("client", np.asarray([client for client, *_ in rows]))
            return _table(clients, rows, ids)

        digest = source_file.parsed(_TABLES, "availability_trace", self.path, self.digest, parse)
        return self.replace(digest=digest)

    @property
    def client_ids(self) -> tuple[str, ...]:
        return self._table.ids

    @property
    def _table(self) -> _Table:
        return _TABLES[self.digest if self.digest in _TABLES else self.loaded().digest]

    def step(self, state: Any, key: Array, clock: Array, num_clients: int) -> tuple[Array, Any]:
        times = jnp.asarray(self._table.times[:num_clients], jnp.float32)
        start, end = jnp.moveaxis(times, -1, 0)
        is_inside = (start <= clock) & (clock < end)
        if self.period is not None:
            since = (clock - start) % self.period
            is_inside = (since < end - start) & (end > start)
        return jnp.any(is_inside, axis=1), state


def _row(where: str, line: list[str]) -> tuple[str, float, float]:
    try:
        client, start, end = client_id(line[0]), float(line[1]), float(line[2])
    except ValueError:
        raise ConfigError(
            f"{where}, {','.join(line)!r}: must be a client number or name, followed by two "
            "times in seconds."
        ) from None
    return client, *_checked(where, (start, end))


def _checked(where: str, pair: tuple[float, float]) -> tuple[float, float]:
    start, end = (float(time) for time in pair)
    if not (0 <= start < end and math.isfinite(end)):
        raise ConfigError(
            f"{where}: start = {start:g} s, end = {end:g} s: must satisfy 0 <= start < end < inf."
        )
    if start > LATEST:
        raise ConfigError(
            f"{where}: start = {start:.0f} s: must be <= {LATEST}, because float32 cannot "
            "represent every later second. Subtract the earliest start from all times."
        )
    return start, end


def _table(
    clients: NDArray[Any], rows: Sequence[tuple[Any, float, float]], ids: tuple[str, ...] = ()
) -> _Table:
    most = int(np.bincount(clients).max())
    size = 16.0 * (int(clients.max()) + 1) * most
    check_memory(size, f"a table of {most} intervals per client", "Remove some intervals.")
    times = np.zeros((clients.max() + 1, most, 2))
    filled = np.zeros(len(times), int)
    for client, (_, start, end) in zip(clients, rows, strict=True):
        times[client, filled[client]] = start, end
        filled[client] += 1
    return _Table(times, ids)
