"""A comparison as one HTML file that needs no network. Needs the extra ``report``."""

from __future__ import annotations

import pathlib

import xarray as xr

from pause_jax.base.struct import ConfigError

__all__ = ["write"]

HINT = "pip install 'pause_jax[report]'"


def write(
    result: xr.Dataset,
    path: str | pathlib.Path,
    target: float = 0.8,
    *,
    against: str | None = None,
    title: str = "Comparison",
) -> pathlib.Path:
    """Write the report of a sweep: what was compared, how it went, and what to conclude.

    All of it comes from the data set, so that it can be made again where nothing can be run. What
    needs the configs' classes (privacy, the order of clients by speed) is said to be missing where
    a custom class is not loaded.

    Args:
      result: from ``sweep``, or a ``data.nc`` that was loaded.
      path: of the HTML file.
      target: accuracy whose time is asked for, in (0, 1].
      against: the config that the others are compared with; else the best
        (``analysis.comparison.compare``).
      title: of the page.

    Returns:
      The path.

    Raises:
      ConfigError: without the extra ``report``, for data that are no whole result, a bad target, or
        a config ``against`` that is none.
      OSError: if the path cannot be written.
    """
    try:
        from pause_jax.analysis.report import page
    except ModuleNotFoundError as error:
        raise ConfigError(f"report: {error.name} is missing: {HINT}.") from None
    path = pathlib.Path(path)
    path.write_text(page.render(result, target, against, title), encoding="utf-8")
    return path
