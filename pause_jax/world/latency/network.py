"""Latency model that adds download, compute and upload times."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.stats import norm
from numpy.typing import NDArray

from pause_jax.base import source_file
from pause_jax.base.checks import float32
from pause_jax.base.struct import ConfigError, Rule, Sizes, number, static
from pause_jax.rng.draws import evenly
from pause_jax.world.latency.base import Latency, Work

COLUMNS = (
    "device", "share", "sample_seconds", "sample_spread", "download_mbit", "download_spread",
    "upload_mbit", "upload_spread",
)  # fmt: skip
# File names of the bundled tables, keyed by ``path``.
_BUNDLED = {"": "devices.csv", "phones": "phones.csv"}
# Fields of ``Work``, in the column order of ``_Devices.median``.
_AMOUNTS = ("samples", "download_bytes", "upload_bytes")
# Gauss-Legendre rules for the three latency components, from least to most variable. Only the
# first two rules apply below the kink at tau_min. Errors are < 1e-5 for spreads <= 1.
_LEAST, _MIDDLE, _MOST = (np.polynomial.legendre.leggauss(n) for n in (12, 14, 16))
# Maximum spread (standard deviation of a value's logarithm). Spreads >= 16 may overflow.
_MOST_SPREAD = 10.0
# Number of standard deviations at which log-normal integrals are truncated (tail mass 6e-7).
_REACH = 5.0
# Number of clients per batch in the quadrature, which has 24 x 28 x 16 nodes per client.
_TOGETHER = 128


class _Devices(NamedTuple):
    """Columns of a device table with D rows."""

    share: NDArray[np.float64] | None  # [D], relative shares (None if row k is client k)
    # [D, 3], median times in seconds: per sample, per downloaded byte and per uploaded byte.
    median: NDArray[np.float64]
    spread: NDArray[np.float64]  # [D, 3], standard deviations of the logarithms


# Tables loaded before tracing, keyed by digest. Traced programs cannot read files.
_TABLES: dict[str, _Devices] = {}


class Network(Latency):
    """Latency = max(tau_min, download + compute + upload), with times that depend on the device.

        seconds = download bytes / down + samples x seconds per sample + upload bytes / up

    The time per sample and both rates are drawn in every round from log-normal distributions around
    the device's medians. Devices are listed in a CSV file with the columns ``device, share,
    sample_seconds, sample_spread, download_mbit, download_spread, upload_mbit, upload_spread``.
    Medians are in seconds per sample or Mbit/s, and spreads are standard deviations of natural
    logarithms. Devices are interleaved over the client numbers, in proportion to their ``share``.
    Without a ``share`` column, row k describes client k. ``tools/devices.py`` creates the two
    bundled tables, a synthetic one and ``phones``, which is fitted to measurements.

    Attributes:
      download_bytes, upload_bytes: bytes that a client receives (model) and sends (update), or
        None to use the run's model size.
      samples: number of samples on which a client computes gradients in a round, or None to
        derive the number from the client's data size and the run's training settings.
      path: file path (static), absolute or relative to the working directory. Empty for the
        synthetic table, ``phones`` for the phone table, ``./phones`` for a local file of that name.
      digest: SHA-256 of the file (static), filled in when a run starts. A file with a different
        digest is rejected.
    """

    name: ClassVar[str] = "network"
    summary: ClassVar[str] = "download, compute and upload times from a device table (CSV)"

    download_bytes: float | None = number(default=None, at_least=0, optional=True)
    upload_bytes: float | None = number(default=None, at_least=0, optional=True)
    samples: float | None = number(default=None, at_least=0, optional=True)
    path: str = static(default="")
    digest: str = static(default="")

    def check(self, path: str, sizes: Sizes) -> None:
        devices = _TABLES[self.loaded().digest]
        if devices.share is None and len(devices.median) < sizes.num_clients:
            raise ConfigError(
                f"{path}.path = {self.path!r}: has {len(devices.median)} lines for num_clients = "
                f"{sizes.num_clients}. Without a share column, it must have one line per client. "
                "Add lines, or add a share column."
            )

    def loaded(self) -> Self:
        bundled = _BUNDLED.get(self.path)
        path = str(pathlib.Path(__file__).with_name(bundled)) if bundled else self.path

        def parse(content: bytes) -> _Devices:
            return _parse(content, f"latency.path = {path!r}")

        digest = source_file.parsed(_TABLES, "latency", path, self.digest, parse)
        return self.replace(digest=digest)

    def with_work(self, work: Work) -> tuple[Self, Work]:
        amounts = {}
        for name, of_run in work._asdict().items():
            fixed = getattr(self, name)
            if fixed is None and isinstance(of_run, float) and of_run == 0:
                raise ConfigError(
                    f"latency.{name} = None: defaults to the model's size, but this run has no "
                    f"model. Set latency.{name} in bytes."
                )
            amount = jnp.asarray(of_run if fixed is None else fixed, jnp.float32)
            amounts[name] = jnp.broadcast_to(amount, jnp.shape(of_run))
        return self.replace(**amounts), Work(**amounts)

    def sample(self, key: Array, num_clients: int) -> Array:
        median, spread = self._of_clients(num_clients)
        parts = median * jnp.exp(spread * jax.random.normal(key, (num_clients, 3)))
        return jnp.maximum(self.min_latency, jnp.sum(parts, axis=-1))

    def expected_speed(self, num_clients: int) -> Array:
        node, weight = (jnp.asarray(x, jnp.float32) for x in _MOST)

        def speed(spent: Array, median: Array, spread: Array) -> Array:
            kink = self._kink(spent, median, spread)
            half = (_REACH - kink) / 2
            noise = kink + half * (1 + node)
            seconds = spent + median * jnp.exp(spread * noise)
            above = half * weight * norm.pdf(noise) * self.min_latency / seconds
            beyond = norm.cdf(-_REACH)
            return (norm.cdf(kink) - beyond + jnp.sum(above)) / (1 - 2 * beyond)

        return self._expectation(speed, num_clients)

    def expected_latency(self, num_clients: int) -> Array:
        def short(spent: Array, median: Array, spread: Array) -> Array:
            """Return the expected shortfall below tau_min, in seconds."""
            kink = self._kink(spent, median, spread)
            part = median * jnp.exp(spread**2 / 2) * norm.cdf(kink - spread)
            left = (self.min_latency - spent) * norm.cdf(kink)
            return jnp.where(spent < self.min_latency, jnp.maximum(left - part, 0.0), 0.0)

        median, spread = self._of_clients(num_clients)
        mean = jnp.sum(median * jnp.exp(spread**2 / 2), axis=1)
        return mean + self._expectation(short, num_clients)

    def _of_clients(self, num_clients: int) -> tuple[Array, Array]:
        """Return (medians in seconds, spreads) of the three components, float [K, 3] each."""
        devices = _TABLES[self.digest if self.digest in _TABLES else self.loaded().digest]
        amounts = {name: getattr(self, name) for name in _AMOUNTS}
        for name, amount in amounts.items():
            if amount is None:
                raise ConfigError(
                    f"latency.{name} = None: the default is determined by the run. Set "
                    f"latency.{name} to use the latency model outside a run."
                )
        place = np.arange(num_clients)
        if devices.share is not None:
            ends = np.cumsum(devices.share) / np.sum(devices.share)
            place = np.minimum(np.searchsorted(ends, evenly(num_clients), "right"), len(ends) - 1)
        each = [jnp.broadcast_to(jnp.asarray(x), (num_clients,)) for x in amounts.values()]
        median = jnp.asarray(devices.median[place], jnp.float32)
        return jnp.stack(each, axis=1) * median, jnp.asarray(devices.spread[place], jnp.float32)

    def _kink(self, spent: Array, median: Array, spread: Array) -> Array:
        """Return the normal deviate at which spent + part = tau_min, clipped to +-``_REACH``."""
        left = jnp.maximum(self.min_latency - spent, 0.0) / jnp.maximum(median, 1e-30)
        return jnp.clip(jnp.log(left) / jnp.maximum(spread, 1e-6), -_REACH, _REACH)

    def _expectation(self, of: Callable[[Array, Array, Array], Array], num_clients: int) -> Array:
        """Return each client's expected value of ``of(spent, median, spread)``, float [K].

        ``spent`` is the sum of the two least variable latency components, in seconds. ``of``
        computes the expectation over the most variable component. Integrals are split at tau_min.
        """

        def split(
            spent: Array, median: Array, spread: Array, rule: tuple[np.ndarray, np.ndarray]
        ) -> tuple[Array, Array]:
            """Return quadrature points and weights ([2 n]) for ``spent`` plus a log-normal time."""
            node, weight = (jnp.asarray(x, jnp.float32) for x in rule)
            kink = self._kink(spent, median, spread)
            below, above = (kink + _REACH) / 2, (_REACH - kink) / 2
            noise = jnp.concatenate([below * (1 + node) - _REACH, above * (1 + node) + kink])
            weights = jnp.concatenate([below * weight, above * weight]) * norm.pdf(noise)
            return spent + median * jnp.exp(spread * noise), weights

        def one(client: tuple[Array, Array]) -> Array:
            order = jnp.argsort(client[0] * client[1])
            median, spread = (x[order] for x in client)
            spent, first = split(jnp.zeros(()), median[0], spread[0], _LEAST)
            spent, second = jax.vmap(lambda x: split(x, median[1], spread[1], _MIDDLE))(spent)
            weights = first[:, None] * second
            values = jax.vmap(jax.vmap(lambda x: of(x, median[2], spread[2])))(spent)
            return jnp.sum(weights * values) / jnp.sum(weights)

        return jax.lax.map(one, self._of_clients(num_clients), batch_size=_TOGETHER)


def _parse(content: bytes, where: str) -> _Devices:
    """Parse a device table in CSV format. Raise ConfigError at the first invalid line."""
    header, lines = source_file.table(where, content)
    needed = [word for word in COLUMNS if word != "share"]
    if sorted(set(header) | {"share"}) != sorted(COLUMNS) or len(set(header)) != len(header):
        raise ConfigError(
            f"{where}: must have the columns {', '.join(needed)}, and optionally share."
        )
    if not lines:
        raise ConfigError(f"{where}: must have at least one device.")
    table = {
        word: np.asarray([_number(where, place, word, line[column]) for place, line in lines])
        for column, word in enumerate(header)
        if word != "device"
    }
    seconds_a_byte = [8e-6 / table["download_mbit"], 8e-6 / table["upload_mbit"]]
    return _Devices(
        table.get("share"),
        np.stack([table["sample_seconds"], *seconds_a_byte], axis=1),
        np.stack([table[f"{part}_spread"] for part in ("sample", "download", "upload")], axis=1),
    )


def _number(where: str, place: str, word: str, entry: str) -> float:
    value = float(float32(entry))
    rule = Rule(above=0)
    if word == "sample_seconds" or word.endswith("_spread"):
        rule = Rule(at_least=0, at_most=_MOST_SPREAD if word != "sample_seconds" else None)
    if not rule.admitted(value):
        must = f"must be a float32 number {rule.describe()}"
        raise ConfigError(f"{where}, {place}, {word} = {entry!r}: {must}.")
    return value
