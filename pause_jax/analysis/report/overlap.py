"""Rounds that overlap: what a report says of server steps, staleness and clients under way."""

from __future__ import annotations

import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.analysis.report import pictures
from pause_jax.analysis.report.pictures import Picture
from pause_jax.analysis.report.tables import Table

_RECORDED = ("in_flight", "staleness", "useful", "waiting")


def show(result: xr.Dataset) -> tuple[dict[str, Picture | None], Table | None]:
    """Charts by name and a table; None each if no rounds overlap."""
    if any(name not in result for name in _RECORDED):  # recorded only where some overlap
        return dict.fromkeys(("versions", "in_flight", "staleness")), None
    return {
        "versions": pictures.versions(result),
        "in_flight": pictures.in_flight(result),
        "staleness": pictures.staleness(result),
    }, _table(result)


def _table(result: xr.Dataset) -> Table:
    seconds = metrics.simulated_seconds(result)
    answered = result.staleness >= 0
    columns = {
        "answers / s": answered.sum(("round", "slot")) / seconds,
        "useful updates / s": result.useful.sum("round") / seconds,
        "staleness": result.staleness.where(answered).mean(("round", "slot")),
        "wait, s": result.waiting.mean("round"),
    }
    means = [metrics.mean_and_error(values)[0] for values in columns.values()]
    rows = [
        (str(name), *(f"{float(mean.sel(config=name)):.3g}" for mean in means))
        for name in result.config.values
    ]
    words = (
        "A useful update is one that was averaged, counted by the factor of its staleness. Wait: "
        "from a client's answer to the server step. Means over seeds."
    )
    return Table("Answers and their age", ("config", *columns), tuple(rows), words)
