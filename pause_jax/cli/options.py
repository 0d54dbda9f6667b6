"""Shared options of the commands.

A parameter of a command may be a dataclass of options, such as ``Source`` or ``Request``.
``with_options`` turns each annotated field into an option of the command.
"""

from __future__ import annotations

import dataclasses
import enum
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
    """Run Python files, to register their config classes and find objects as ``FILE.py:name``.

    A file can import modules in its folder, as with ``python FILE.py``.
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
# JAX uses 32 bits of a seed, so a larger seed would repeat the results of a smaller one.
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")]
Target = Annotated[
    float, typer.Option(help="Target test accuracy for the reported time to accuracy.")
]
LogKind = enum.StrEnum("LogKind", ["tensorboard", "csv", "answers"])


@dataclasses.dataclass(frozen=True)
class Source:
    """Options that select and change configs."""

    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "--policies",
            metavar="NAME[:MECHANISM]",
            help="Policy to use instead of the config's (see 'pause-jax policies'), optionally "
            f"with a privacy mechanism: {', '.join(m.name for m in MECHANISMS)}. compare accepts "
            "several, separated by commas.",
        ),
    ] = None
    rounds: Annotated[
        int | None, typer.Option(help="Number of rounds (default: the config's).")
    ] = None
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of data sets prepared by tensorflow-datasets.")
    ] = None
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Field to change, e.g. reward.gamma=0. May be repeated.",
        ),
    ] = None
    load: Load = None
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Allow config files to import and call any code."),
    ] = False


@dataclasses.dataclass(frozen=True)
class Output:
    """Options of the commands that write a result folder."""

    seed: Seed = 0
    name: Annotated[
        str | None,
        typer.Option(help="Name of the result (default: from the config, numbered if taken)."),
    ] = None
    out: Annotated[pathlib.Path, typer.Option(help="Folder for all results.")] = pathlib.Path(
        "results"
    )
    force: Annotated[
        bool, typer.Option("--force", help="Write into an existing result folder.")
    ] = False
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the same command after a stop or crash."),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the planned runs and their estimated time, and exit."
        ),
    ] = False


@dataclasses.dataclass(frozen=True)
class Request(Output):
    """Options for execution and output."""

    # The keys of more seeds would fill the memory before the first run.
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=10**7,
            help="Number of independent runs per config, with the same seeds for all configs.",
        ),
    ] = 3
    target: Target = 0.8
    figures: Annotated[
        bool, typer.Option(help="Write figures as PNG, PDF and SVG (requires the extra 'plot').")
    ] = True
    report: Annotated[
        bool, typer.Option(help="Write report.html (requires the extra 'report').")
    ] = True
    log: Annotated[
        list[LogKind] | None,
        typer.Option("--log", help="Format of an additional log of every round. May be repeated."),
    ] = None
    per_client: Annotated[
        bool, typer.Option("--per-client", help="Record the accuracy and loss of each client.")
    ] = False
    max_batch: Annotated[
        int | None, typer.Option(help="Maximum runs per batch (default: what fits in memory).")
    ] = None
    store: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="FOLDER", help="Folder that keeps finished runs, for --resume."),
    ] = None
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULER|local:N", help="Dask scheduler, or number of local processes."
        ),
    ] = None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer that has one parameter per field of each dataclass."""
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
        parameters += [
            parameter.replace(
                name=name,
                annotation=hint,
                default=getattr(defaults, name),
                kind=parameter.KEYWORD_ONLY,
            )
            for name, hint in get_type_hints(kind, include_extras=True).items()
        ]

    def called(**given: Any) -> None:
        for name, kind in groups.items():
            options = [field.name for field in dataclasses.fields(kind)]
            given[name] = kind(**{option: given.pop(option) for option in options})
        command(**given)

    called.__doc__ = command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called
