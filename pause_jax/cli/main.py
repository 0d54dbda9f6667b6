"""The program ``pause-jax``: its commands, and how it ends."""

from __future__ import annotations

import logging
import sys
import warnings
from importlib import metadata
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from pause_jax.base.struct import ConfigError
from pause_jax.cli import output
from pause_jax.cli.audit import audit
from pause_jax.cli.compare import compare, run, show
from pause_jax.cli.fit import fit
from pause_jax.cli.importing import import_files
from pause_jax.cli.listing import (
    list_availability_traces,
    list_datasets,
    list_latencies,
    list_policies,
)
from pause_jax.cli.options import with_options
from pause_jax.cli.report import report
from pause_jax.cli.shards import merge, slurm
from pause_jax.cli.sweep import sweep
from pause_jax.cli.tune import tune
from pause_jax.sweep.execute import SweepInterrupted

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (compare, run, sweep, merge, slurm, tune, report, show):
    app.command()(with_options(_command))
app.command("policies")(list_policies)
app.command("latencies")(list_latencies)
app.command("availability-traces")(list_availability_traces)
app.command("presences", hidden=True, deprecated=True)(list_availability_traces)
app.command("datasets")(list_datasets)
app.command()(audit)
app.command()(fit)
app.command("import")(import_files)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pause_jax {metadata.version('pause_jax')}, JAX {jax.__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Client selection for federated learning, simulated in JAX."""


class _Warnings:
    """Prints each warning in a line, and the same line once."""

    def __init__(self) -> None:
        self.printed: set[str] = set()

    def __call__(self, message: Warning | str, *_: Any, **__: Any) -> None:
        text = str(message)
        if text.startswith("Error reading persistent compilation cache entry"):
            # JAX never writes it again.
            text = (
                f"{jax.config.values['jax_compilation_cache_dir']} has damaged programs, which are "
                "compiled anew at every start. Delete it."
            )
        if text not in self.printed:
            self.printed.add(text)
            Console(stderr=True).print(f"[yellow]warning:[/yellow] {escape(text)}", highlight=False)


def main() -> None:
    """Entry point: a bad config is one line on standard error and exit status 2, and so is a
    warning, but for the status. A full standard output is a line and status 1.
    """
    plain = RichHandler(
        console=Console(stderr=True), show_time=False, show_level=False, show_path=False
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[plain])
    logging.getLogger("pause_jax").setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _Warnings()
            try:
                app()
            finally:
                output.flush()
    except OSError as error:
        output.end_of_space(error)
    except (ConfigError, SweepInterrupted) as error:
        # A message may hold brackets that are no markup: pause_jax[plot].
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        sys.exit(2)
