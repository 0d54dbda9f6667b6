"""Entry point of the ``pause-jax`` program, which runs commands and sets the exit status."""

from __future__ import annotations

import ast
import functools
import importlib
import logging
import os
import pathlib
import sys
import warnings
from collections.abc import Container
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from pause_jax.base.versions import version as version_of
from pause_jax.cli import output

# JAX reads this variable on import. By default, JAX 0.10.1 logs two lines per cached program.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


# Function that implements each command, as MODULE.FUNCTION in ``pause_jax.cli``.
COMMANDS = {
    "compare": "compare.compare",
    "run": "compare.run",
    "sweep": "compare.sweep",
    "tune": "tune.tune",
    "gauntlet": "gauntlet.gauntlet",
    "report": "report.report",
    "show": "compare.show",
    "policies": "listing.list_policies",
    "latencies": "listing.list_latencies",
    "availability-traces": "listing.list_availability_traces",
    "datasets": "listing.list_datasets",
    "audit": "audit.audit",
    "fit": "fit.fit",
    "import": "importing.import_files",
}


def program(names: Container[str] = COMMANDS) -> typer.Typer:
    """Build the command-line program with only the commands in ``names`` enabled.

    Other commands appear in the help, but their modules are not imported, which saves a second.
    """
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(start)
    for name, place in COMMANDS.items():
        module, function = place.split(".")
        if name in names:
            from pause_jax.cli.options import with_options

            imported = importlib.import_module(f"pause_jax.cli.{module}")
            app.command(name)(with_options(getattr(imported, function)))
        else:
            app.command(name)(_listed(module, function))
    return app


def _listed(module: str, name: str) -> Any:
    """Return a placeholder with a command's docstring, without importing the command's module."""
    source = (pathlib.Path(__file__).parent / f"{module}.py").read_text("utf-8")
    functions = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)]

    def command() -> None:
        raise NotImplementedError

    command.__doc__ = next(ast.get_docstring(each) for each in functions if each.name == name)
    return command


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pause_jax {version_of('pause_jax')}, JAX {version_of('jax')}")
        raise typer.Exit


def start(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Simulate client selection for federated learning in JAX."""


def _print_warning(text: str) -> None:
    Console(stderr=True).print(f"[yellow]warning:[/yellow] {escape(text)}", highlight=False)


def main() -> None:
    """Run the program.

    Each warning, config error or full-disk error is reported as one message on standard error. The
    exit status is 2 for a config error and 1 for a full disk.
    """
    output.open_streams()
    plain = RichHandler(
        console=Console(stderr=True), show_time=False, show_level=False, show_path=False
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[plain])
    logging.getLogger("pause_jax").setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            print_once = functools.cache(_print_warning)
            warnings.showwarning = lambda message, *_, **__: print_once(str(message))
            # Options before the command take no values, so the first non-option is the command.
            words = [word for word in sys.argv[1:] if not word.startswith("-")]
            program(words[:1])()
    except OSError as error:
        output.end_of_space(error)
    except ValueError as error:
        from pause_jax.base.struct import ConfigError

        if not isinstance(error, ConfigError):
            raise
        output.print_error(str(error))
        sys.exit(2)
