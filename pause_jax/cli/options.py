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
            raise ConfigError(f"--load {file}: must be a Python file, and there is none.")
        sys.path.insert(0, str(file.resolve().parent))
        try:
            LOADED[file.name] = runpy.run_path(str(file), run_name=file.name)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"--load {file}: {type(error).__name__}: {error}.") from error


Base = Annotated[str, typer.Argument(help=f"Config file (TOML) or one of {', '.join(PRESETS)}.")]
Load = Annotated[
    list[pathlib.Path] | None,
    typer.Option(
        "--load",
        metavar="FILE.py",
        callback=load_files,
        help="Python file: policies, mechanisms of your own.",
    ),
]
# JAX uses 32 bits of a seed, so a larger seed would repeat the results of a smaller one.
Seed = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="Number that the seeds are derived from.")
]
Target = Annotated[float, typer.Option(help="Test accuracy whose simulated time is reported.")]
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
            help="Policy (see 'pause-jax policies') in place of the config's, with a privacy "
            f"mechanism if named: {', '.join(m.name for m in MECHANISMS)}. compare takes several, "
            "by commas.",
        ),
    ] = None
    rounds: Annotated[int | None, typer.Option(help="Rounds, if not those of the config.")] = None
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with prepared tensorflow-datasets data.")
    ] = None
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field, e.g. reward.gamma=0."),
    ] = None
    load: Load = None
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Let config files import and call whatever code they name."),
    ] = False


@dataclasses.dataclass(frozen=True)
class Output:
    """Options of the commands that write a result folder."""

    seed: Seed = 0
    name: Annotated[str | None, typer.Option(help="Name of the result; numbered if left out.")] = (
        None
    )
    out: Annotated[pathlib.Path, typer.Option(help="Folder of all results.")] = pathlib.Path(
        "results"
    )
    force: Annotated[
        bool, typer.Option("--force", help="Write into an existing result folder.")
    ] = False
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on where the same command was stopped, even by a crash."),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would run and how long it takes; run nothing."),
    ] = False


@dataclasses.dataclass(frozen=True)
class Request(Output):
    """Options for execution and output."""

    # The keys of more seeds would fill the memory before the first run.
    seeds: Annotated[
        int,
        typer.Option(
            min=1, max=10**7, help="Independent seeds; all policies meet the same worlds."
        ),
    ] = 3
    target: Target = 0.8
    figures: Annotated[
        bool, typer.Option(help="Write figures as PNG, PDF and SVG (needs the extra 'plot').")
    ] = True
    report: Annotated[bool, typer.Option(help="Write report.html (needs the extra 'report').")] = (
        True
    )
    log: Annotated[
        list[LogKind] | None,
        typer.Option("--log", help="Also write every round. May be repeated."),
    ] = None
    per_client: Annotated[
        bool, typer.Option("--per-client", help="Record each client's own accuracy and loss.")
    ] = False
    max_batch: Annotated[
        int | None, typer.Option(help="Maximum runs per batch (default: what fits in memory).")
    ] = None
    store: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="FOLDER", help="Folder for finished runs, to keep and to resume."),
    ] = None
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULER|local:N", help="Run on a Dask cluster, or on N processes here."
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
