"""HTML page of a report, built from its charts and tables."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import altair
import jinja2
import vl_convert
import xarray as xr

from pause_jax.analysis import ledger_table, summary
from pause_jax.analysis.comparison import compare
from pause_jax.analysis.curves import DARK, LIGHT, styles
from pause_jax.analysis.participation import participation
from pause_jax.analysis.report import pictures, tables
from pause_jax.analysis.report.pictures import Picture
from pause_jax.base.struct import ConfigError
from pause_jax.config import config_file

_FOLDER = pathlib.Path(__file__).parent
_NEEDED = (
    *("clock", "clients", "counts", "data_size", "downloaded", "eval_clock", "first_broken_round"),
    *("first_nonfinite_round", "latency", "max_spent", "num_played", "played", "queried"),
    *("query_seconds", "regret", "spent", "test_accuracy", "test_loss", "uploaded"),
    *("broken_rules", "epsilon_unit", "num_parameters", "unnoised", "config_toml"),
)


def render(result: xr.Dataset, target: float, against: str | None, title: str) -> str:
    """Return the HTML of a report (see ``pause_jax.analysis.report.write``)."""
    if missing := [name for name in _NEEDED if name not in result.variables]:
        raise ConfigError(
            f"report: the data set has no {', '.join(missing)}. Run sweep without `record`."
        )
    if not result.sizes["config"] or not result.sizes["seed"]:
        raise ConfigError("report: the data set has no runs. Run the sweep first.")
    for text in result.config_toml.values:
        config_file.parsed(str(text))  # raises ConfigError for a damaged config
    comparison = compare(result, target, against)
    interrupted = str(result.attrs.get("interrupted", "no"))
    found = participation(result)
    books, notes = _privacy(result)
    overlaps = all(name in result for name in ("in_flight", "staleness", "useful", "waiting"))
    charts = {
        "time": pictures.against_time(result, target),
        "took_part": pictures.participation(result, found),
        "budget": pictures.budget(result),
        "regret": pictures.regret(result),
        "versions": pictures.versions(result) if overlaps else None,
        "in_flight": pictures.in_flight(result) if overlaps else None,
        "staleness": pictures.staleness(result) if overlaps else None,
    }
    bundle = _bundle()
    script = (_FOLDER / "page.js").read_text("utf-8")
    sizes = {name: result.sizes[name] for name in ("config", "seed", "round", "client")}
    return _template().render(
        title=title,
        facts=[f"{size:,} {name}{'s' if size != 1 else ''}" for name, size in sizes.items()],
        policy=_policy(bundle, script),
        css=(_FOLDER / "page.css").read_text("utf-8"),
        swaps=list(zip(LIGHT, DARK, strict=True)),
        bundle=bundle,
        script=script,
        charts=charts,
        data={name: _json(chart) for name, chart in charts.items() if chart},
        styles=styles(result.config.values),
        comparison=comparison,
        merits=tables.merits(result, target),
        judged=tables.judged(result, comparison),
        differing=tables.differing(result),
        thirds=tables.participation(result, found),
        behind=tables.left_behind(result, found),
        ages=tables.answers(result) if overlaps else None,
        privacy=books,
        by_budget=tables.by_budget(result),
        notes=notes,
        made=tables.attributes(result),
        interrupted="" if interrupted == "no" else interrupted,
        files=list(zip(result.config.values, result.config_toml.values, strict=True)),
    )


def _privacy(result: xr.Dataset) -> tuple[summary.Table | None, dict[str, list[str]]]:
    """Return the ledger table (None if a custom class is not loaded) and each section's notes."""
    try:
        books = ledger_table.ledgers(result)
        return tables.privacy(books), {
            "privacy": list(ledger_table.notes(books)),
            "runs": list(summary.notes(result)),
        }
    except ConfigError as error:
        text = f"Privacy ledger unavailable: {error} Load the custom class with --load FILE.py."
        return None, {"privacy": [text, *_units(result)], "runs": []}


def _units(result: xr.Dataset) -> Iterator[str]:
    """Yield privacy notes that do not require the configs' custom classes."""
    for config in result.config.values:
        one = result.sel(config=config)
        unit, unnoised = one.epsilon_unit.item(), [one.unnoised.item()]
        if one.num_parameters.item():
            unnoised += ["updates"] * (unit == "none") + ["data sizes"]
        names = ", ".join(filter(None, unnoised)) or "nothing"
        yield f"{config}: unit {unit}. Sent without noise: {names}."


@functools.cache
def _bundle() -> str:
    """Return the JavaScript of Vega, Vega-Lite and vega-embed for the installed Altair version."""
    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    bundle: Any = vl_convert.javascript_bundle  # the type stub lacks defaults
    return str(bundle(vl_version=version))


def _policy(*scripts: str) -> str:
    """Return a Content-Security-Policy that allows only ``scripts`` and blocks network access."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    known = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    images = "img-src data: blob:"
    return f"default-src 'none'; script-src {known}; style-src 'unsafe-inline'; {images}"


def _json(chart: Picture) -> str:
    """Return the JSON of a chart, escaped because a label may contain </script>."""
    text = json.dumps(chart.spec, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _template() -> Any:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
