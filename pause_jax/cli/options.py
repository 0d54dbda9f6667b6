"""Shared options of the commands, each declared once.

A parameter of a command may be a NamedTuple of options, such as ``Source`` or ``Request``.
``with_options`` turns each annotated field into an option of the command.
"""

from __future__ import annotations

import enum
import inspect
import pathlib
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from pause_jax.config.presets import PRESETS
from pause_jax.privacy import MECHANISMS

Base = Annotated[str, typer.Argument(help=f"Config file (TOML) or one of {', '.join(PRESETS)}.")]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH=A,B,...",
        help="Values of a field, e.g. reward.gamma=0,1,5; repeat it for a grid. A value that "
        "is a list stands in brackets: learning.model.hidden=[32],[16,8].",
    ),
]
MaxBatch = Annotated[
    int | None, typer.Option(help="Maximum runs per batch (default: what fits in memory).")
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        "--policies",
        metavar="NAME[:MECHANISM]",
        help="Policy (see 'pause-jax policies') in place of the config's, with a privacy mechanism "
        f"if named: {', '.join(m.name for m in MECHANISMS)}. compare takes several, by commas.",
    ),
]
Rounds = Annotated[int | None, typer.Option(help="Rounds, if not those of the config.")]

# The keys of more seeds would fill the memory before the first run.
Seeds = Annotated[
    int,
    typer.Option(min=1, max=10**7, help="Independent seeds; all policies meet the same worlds."),
]
# JAX uses 32 bits of a seed, so a larger seed would repeat the results of a smaller one.
Seed = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="Number that the seeds are derived from.")
]
Target = Annotated[float, typer.Option(help="Test accuracy whose simulated time is reported.")]
Name = Annotated[str | None, typer.Option(help="Name of the result; numbered if left out.")]
Out = Annotated[pathlib.Path, typer.Option(help="Folder of all results.")]
Force = Annotated[bool, typer.Option("--force", help="Write into an existing result folder.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field, e.g. reward.gamma=0."),
]
Load = Annotated[
    list[pathlib.Path] | None,
    typer.Option(
        "--load", metavar="FILE.py", help="Python file: policies, mechanisms of your own."
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Let config files import and call whatever code they name."),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on where the same command was stopped, even by a crash."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would run and how long it takes; run nothing.")
]
Figures = Annotated[
    bool, typer.Option(help="Write figures as PNG, PDF and SVG (needs the extra 'plot').")
]
Report = Annotated[bool, typer.Option(help="Write report.html (needs the extra 'report').")]
LogKind = enum.StrEnum("LogKind", ["tensorboard", "csv", "answers"])
Log = Annotated[
    list[LogKind] | None,
    typer.Option("--log", help="Also write every round. May be repeated."),
]
PerClient = Annotated[
    bool, typer.Option("--per-client", help="Record each client's own accuracy and loss.")
]
DataDir = Annotated[str | None, typer.Option(help="Folder with prepared tensorflow-datasets data.")]
StoreFolder = Annotated[
    pathlib.Path | None,
    typer.Option(metavar="FOLDER", help="Folder for finished runs, to keep and to resume."),
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="SCHEDULER|local:N", help="Run on a Dask cluster, or on N processes here."
    ),
]


class Source(NamedTuple):
    """Options that select and change configs."""

    policy: Policy = None
    rounds: Rounds = None
    data_dir: DataDir = None
    change: Set = None
    load: Load = None
    trust: Trust = False


class Request(NamedTuple):
    """Options for execution and output."""

    seeds: Seeds = 3
    seed: Seed = 0
    target: Target = 0.8
    name: Name = None
    out: Out = pathlib.Path("results")
    force: Force = False
    resume: Resume = False
    dry_run: DryRun = False
    figures: Figures = True
    report: Report = True
    log: Log = None
    per_client: PerClient = False
    max_batch: MaxBatch = None
    store: StoreFolder = None
    dask: Dask = None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer that has one parameter per field of each NamedTuple."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        kind, defaults = hints[parameter.name], {parameter.name: parameter.default}
        options = {parameter.name: kind}
        if hasattr(kind, "_fields"):
            fields = get_type_hints(kind, include_extras=True)
            options = {name: hint for name, hint in fields.items() if hasattr(hint, "__metadata__")}
            given = parameter.default
            defaults = kind._field_defaults if given is parameter.empty else given._asdict()
            groups[parameter.name] = kind, list(options)
        parameters += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, inspect.Parameter.empty),
                annotation=hint,
            )
            for name, hint in options.items()
        ]

    def called(**given: Any) -> None:
        for name, (kind, options) in groups.items():
            given[name] = kind(**{option: given.pop(option) for option in options})
        command(**given)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {}
    return called
