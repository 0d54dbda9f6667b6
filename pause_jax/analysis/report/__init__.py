"""Self-contained HTML report of a sweep. Requires the ``report`` extra."""

from __future__ import annotations

import pathlib

import xarray as xr

from pause_jax.base.struct import ConfigError

__all__ = ["write"]

HINT = "Run: pip install 'pause_jax[report]'"


def write(
    result: xr.Dataset,
    path: str | pathlib.Path,
    target: float = 0.8,
    *,
    against: str | None = None,
    title: str = "Comparison",
) -> pathlib.Path:
    """Write an HTML report of a sweep: configs, charts, tables and conclusions.

    The report needs only the data set, so you can regenerate it without repeating the runs. If a
    config's custom class is not loaded, the report states that the privacy ledger and the clients'
    latencies are not available.

    Args:
      result: data set from ``sweep``, or a loaded ``data.nc``.
      path: path of the HTML file.
      target: accuracy for the time-to-target comparison, in (0, 1].
      against: reference config of the comparison (default: see ``analysis.comparison.compare``).
      title: page title.

    Returns:
      Path of the HTML file.

    Raises:
      ConfigError: if the ``report`` extra is missing, the data set is incomplete, the target is not
        in (0, 1], or the data set has no config named ``against``.
      OSError: if the path cannot be written.
    """
    try:
        from pause_jax.analysis.report import page
    except ModuleNotFoundError as error:
        raise ConfigError(f"report: {error.name} is not installed. {HINT}") from None
    path = pathlib.Path(path)
    path.write_text(page.render(result, target, against, title), encoding="utf-8")
    return path
