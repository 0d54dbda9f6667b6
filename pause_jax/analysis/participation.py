"""Participation per client, with clients sorted by expected latency."""

from __future__ import annotations

import contextlib
import math
from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pause_jax.analysis.curves import Curve
from pause_jax.base.struct import ConfigError
from pause_jax.config import config_file
from pause_jax.world.latency.base import Work

Floats = NDArray[np.float64]

# Maximum number of points per curve. In larger fleets, each point averages several clients.
_POINTS = 60


class Participation(NamedTuple):
    """Participation of a config's clients, sorted by speed if known, otherwise by client number.

    Attributes:
      share: [seed, K], share of the run's rounds in which each client took part.
      seconds: [K], expected latencies, or None if any config's latency model is unavailable.
      clients: [K], client numbers, fastest client first, or None if speeds are not known.
    """

    share: Floats
    seconds: Floats | None
    clients: NDArray[np.intp] | None = None


def participation(result: xr.Dataset) -> dict[str, Participation]:
    """Return each config's participation, sorted by speed if every latency model is available."""
    found = {str(name): _of_config(result.sel(config=name)) for name in result.config.values}
    if any(each.seconds is None for each in found.values()):
        return {name: each._replace(seconds=None) for name, each in found.items()}
    return {name: _by_speed(each) for name, each in found.items()}


def _by_speed(each: Participation) -> Participation:
    seconds = np.asarray(each.seconds)
    order = np.argsort(seconds, kind="stable")
    return Participation(each.share[:, order], seconds[order], order)


def by_client(found: dict[str, Participation]) -> dict[str, Curve]:
    """Return curves of participation (% of rounds) against client rank (1, ..., K)."""
    return {name: _curve(each.share) for name, each in found.items()}


def labels(found: dict[str, Participation]) -> tuple[str, str]:
    """Return the axis labels of the curves from :func:`by_client`."""
    ordered = all(each.seconds is not None for each in found.values())
    where = "clients, fastest to slowest" if ordered else "clients by number"
    most = max(each.share.shape[1] for each in found.values())
    return where + (" (neighbours averaged)" if most > _POINTS else ""), "% of rounds"


def _curve(share: Floats) -> Curve:
    seeds, number = share.shape
    groups = np.array_split(np.arange(number), min(number, _POINTS))
    each = 100 * np.stack([share[:, group].mean(axis=1) for group in groups], axis=1)
    error = np.full(len(groups), np.nan)
    if seeds > 1:
        error = each.std(axis=0, ddof=1) / math.sqrt(seeds)
    return Curve(np.asarray([group.mean() + 1.0 for group in groups]), each.mean(axis=0), error)


def _of_config(one: xr.Dataset) -> Participation:
    counts = one.counts.where(one.counts >= 0) / one.num_played.where(one.num_played > 0)
    share = counts.transpose("seed", "client").values.astype(np.float64)
    share = share[:, np.isfinite(share).any(axis=0)]
    share = share[np.isfinite(share).all(axis=1)]  # drop seeds without rounds
    return Participation(share, _expected_seconds(one, share.shape[1]))


def _expected_seconds(one: xr.Dataset, num_clients: int) -> Floats | None:
    """Return each client's expected latency in seconds, [K], or None if loading the model fails."""
    size = 4.0 * float(one.num_parameters)
    samples = one.data_size.mean("seed").values[:num_clients]
    with contextlib.suppress(ConfigError):
        model = config_file.loads(str(one.config_toml.item())).latency.loaded()
        model, _ = model.with_work(Work(size, size, samples))
        return np.asarray(model.expected_latency(num_clients), np.float64)
    return None
