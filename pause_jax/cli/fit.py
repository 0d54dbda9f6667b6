"""The ``pause-jax fit`` command, which describes a fleet's measured latencies."""

from __future__ import annotations

import math
import os
import pathlib
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tomli_w
import typer
from rich.console import Console

from pause_jax.analysis.table import make_table, number, word
from pause_jax.base.source_file import content_of, os_errors_as
from pause_jax.base.struct import ConfigError
from pause_jax.config import config_file
from pause_jax.world.latency.measured import parse

if TYPE_CHECKING:
    from pause_jax.analysis.fleet import Fleet, Test

# If the clients' median latency exceeds this number of seconds, the unit may be milliseconds.
LONG = 600.0


def fit(
    file: Annotated[pathlib.Path, typer.Argument(help="CSV file of measured latencies.")],
    out: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="TOML file for the fitted model, in the format of a config's latency table."
        ),
    ] = None,
    drop_bad_lines: Annotated[
        bool, typer.Option("--drop-bad-lines", help="Skip invalid lines.")
    ] = False,
) -> None:
    """Describe the distribution, drift and autocorrelation of measured latencies.

    Each line of the file describes one participation (client, seconds, optional round or time).
    """
    if out is not None and os.path.lexists(out):
        raise ConfigError(f"--out {out}: already exists. Choose another --out.")
    content = content_of("fleet", str(file))
    measured = parse(content, str(file), "fleet", drop_bad_lines=drop_bad_lines)
    # Import after the file is validated, because scipy.stats takes a second to import.
    from pause_jax.analysis import fleet

    found = fleet.fit(measured)
    console = Console()
    dropped = Counter(measured.dropped).items()
    lines = [f"Lines dropped: {number_of} ({rule})." for rule, number_of in dropped]
    for line in (*lines, *sentences(found)):
        console.print(line, highlight=False, markup=False)
    best = found.laws[0]
    rows = [
        (
            law.name,
            f"{(law.log_density - best.log_density).sum():.1f}",
            ", ".join(f"{k} = {v.value:.4g} ± {v.error:.2g}" for k, v in law.parameters.items()),
        )
        for law in found.laws
    ]
    columns = word("distribution, best first"), number("log density"), "parameters"
    caption = "fastest, slowest: endpoints of a geometric sequence fitted to the clients' scales"
    console.print(make_table(columns, rows, caption=caption))
    # The true minimum is unknown, so use half of the lowest mean latency.
    least = 0.5 * float(found.mean.min())
    model = best.model(float(np.float32(least)))
    if model is None:
        console.print("No built-in normal model accepts per-client means. Use the measurements:")
        change = f"--set latency.min_latency={least:.3g}"
        console.print(f'--set latency=traces --set latency.path="{file}" {change}', highlight=False)
        return
    text = tomli_w.dumps({"latency": config_file.to_dict(model)})
    console.print(text, highlight=False, markup=False, end="")
    if out is not None:
        with os_errors_as(f"--out {out}: cannot be written"):
            out.write_text(text)


def sentences(found: Fleet) -> list[str]:
    """Return one sentence per finding."""
    low, high = found.measured.min(), found.measured.max()
    times = f"{low}" if low == high else f"{low} to {high}"
    ordered = np.sort(found.mean)
    lines = [
        f"{found.mean.size} clients, {times} measurements each, {found.measured.sum()} in total.",
        f"Mean seconds per client: lowest {ordered[0]:.3g}, median {np.median(ordered):.3g}, "
        f"highest {ordered[-1]:.3g}.",
        "Rows are sorted by the round or time column."
        if found.ordered
        else "Rows are assumed to be in time order, because the file has no round or time column. "
        "If they are not, ignore the drift and correlation below.",
        f"Drift: {_outcome(found.drift, 'rank correlation with time')}.",
        f"Consecutive rounds of a client: {_outcome(found.correlation, 'rank correlation')}.",
    ]
    if np.median(ordered) > LONG:
        lines.append("If the latencies are in milliseconds, divide the 'seconds' column by 1000.")
    if math.isnan(found.drift.p):
        lines.append("Too few measurements per client to test for changes over time.")
    elif found.stationary:
        lines.append("The tests do not reject i.i.d. latencies, which UCB assumes.")
    else:
        lines.append(
            "WARNING: the latencies are not independent and identically distributed, but UCB, "
            "Thompson sampling and the regret bounds assume that they are. Try pause_discounted, "
            "which discounts old measurements. To replay the measured latencies, add --set "
            "latency=traces --set latency.path=FILE --set latency.order=played."
        )
    best = found.laws[0].name
    others = found.rivals
    lines.append(
        f"Distribution: undecided between {', '.join((best, *others))}, best first. Measure each "
        "client more often."
        if others
        else f"Distribution: {best}. All other distributions predict the measurements less well."
    )
    return lines


def _outcome(test: Test, what: str) -> str:
    if math.isnan(test.p):
        return "not testable"
    return f"{what} {test.figure:+.2f}, p = {test.p:.2g}, {test.verdict}"
