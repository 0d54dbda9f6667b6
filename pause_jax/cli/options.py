"""Options shared by the commands.

A command parameter may be a dataclass of options, such as ``Source`` or ``Request``.
``with_options`` turns each field into a command-line option.
"""

# ruff: noqa: RUF009 (`option` returns a field)

from __future__ import annotations

import dataclasses
import inspect
import os
import pathlib
import runpy
import sys
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from pause_jax.base.registry import LOADED
from pause_jax.base.struct import ConfigError
from pause_jax.config.presets import PRESETS
from pause_jax.privacy import MECHANISMS


def load_files(files: list[pathlib.Path] | None) -> None:
    """Run Python files to register their config classes and their objects (``FILE.py:name``).

    A file can import modules from its own folder, like a script.
    """
    for file in files or ():
        if not os.path.isfile(file):
            raise ConfigError(f"--load {file}: must be an existing Python file.")
        sys.path.insert(0, str(file.resolve().parent))
        try:
            LOADED[file.name] = runpy.run_path(str(file), run_name=file.name)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"--load {file}: {type(error).__name__}: {error}.") from error


Base = Annotated[str, typer.Argument(help=f"Config file (TOML) or preset: {', '.join(PRESETS)}.")]
Load = Annotated[
    list[pathlib.Path] | None,
    typer.Option(
        "--load",
        metavar="FILE.py",
        callback=load_files,
        help="Python file with custom classes, e.g. policies. May be repeated.",
    ),
]
# JAX ignores higher bits, so a seed of 2**32 or more would repeat the results of a smaller seed.
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")]
Target = Annotated[
    float, typer.Option(help="Target test accuracy for the reported time to accuracy.")
]


def option(default: Any, help: str, *names: str, **settings: Any) -> Any:
    """Declare a dataclass field that is a command-line option."""
    found = typer.Option(*names, help=help, **settings)
    return dataclasses.field(default=default, metadata={"option": found})


@dataclasses.dataclass(frozen=True)
class Source:
    """Command-line options that select and change configs."""

    policy: str | None = option(
        None,
        "Policy that replaces the config's policy (see 'pause-jax policies'), optionally with a "
        f"privacy mechanism: {', '.join(m.name for m in MECHANISMS)}. compare accepts a "
        "comma-separated list.",
        *("--policy", "--policies"),
        metavar="NAME[:MECHANISM]",
    )
    rounds: int | None = option(None, "Number of rounds (default: from the config).")
    data_dir: str | None = option(None, "Folder of data sets prepared by tensorflow-datasets.")
    change: list[str] | None = option(
        None,
        "Field to change, e.g. reward.gamma=0. May be repeated.",
        "--set",
        metavar="PATH=VALUE",
    )
    load: Load = None


@dataclasses.dataclass(frozen=True)
class Output:
    """Command-line options for commands that write a result folder."""

    seed: Seed = 0
    name: str | None = option(
        None, "Result name (default: from the config, plus a number if taken)."
    )
    out: pathlib.Path = option(pathlib.Path("results"), "Folder for all results.")
    resume: bool = option(False, "Resume an earlier run of the same command.", "--resume")
    dry_run: bool = option(
        False, "Print the planned runs and their estimated time, and exit.", "--dry-run"
    )


@dataclasses.dataclass(frozen=True)
class Request(Output):
    """Command-line options for execution and output."""

    # With more seeds, the keys alone could exhaust memory.
    seeds: int = option(
        3,
        "Number of independent runs per config, with the same seeds for all configs.",
        min=1,
        max=10**7,
    )
    target: Target = 0.8
    figures: bool = option(True, "Write figures as PNG, PDF and SVG (requires the 'plot' extra).")
    report: bool = option(True, "Write report.html (requires the 'report' extra).")
    per_client: bool = option(False, "Record the accuracy and loss of each client.", "--per-client")
    max_batch: int | None = option(None, "Maximum runs per batch (default: what fits in memory).")
    store: pathlib.Path | None = option(
        None, "Folder that stores finished runs for reuse.", metavar="FOLDER"
    )
    dask: str | None = option(
        None, "Dask scheduler, or number of local processes.", metavar="SCHEDULER|local:N"
    )


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a Typer command with one option per field of each dataclass parameter."""
    groups: dict[str, Any] = {}
    parameters = []
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind, kind=parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = kind
        defaults: Any = kind if parameter.default is parameter.empty else parameter.default
        options = get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            name, hint = field.name, options[field.name]
            if "option" in field.metadata:
                hint = Annotated[hint, field.metadata["option"]]
            default = getattr(defaults, name)
            of_field = parameter.replace(name=name, annotation=hint, default=default)
            parameters.append(of_field.replace(kind=parameter.KEYWORD_ONLY))

    def called(**given: Any) -> None:
        for name, kind in groups.items():
            names = [field.name for field in dataclasses.fields(kind)]
            given[name] = kind(**{each: given.pop(each) for each in names})
        command(**given)

    called.__doc__ = command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called
