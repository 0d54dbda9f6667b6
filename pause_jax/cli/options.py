"""Options that several commands have."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

# More keys than that would be as large as a machine before any run is.
Seeds = Annotated[
    int,
    typer.Option(max=10**7, help="Independent seeds; all policies meet the same worlds."),
]
# JAX takes 32 bits of it: a larger one would be another seed.
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
Figures = Annotated[bool, typer.Option(help="Write PNG figures (needs the extra 'plot').")]
Report = Annotated[bool, typer.Option(help="Write report.html (needs the extra 'report').")]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", help="Also write every round: tensorboard, csv. May be repeated."),
]
DataDir = Annotated[str | None, typer.Option(help="Folder with prepared tensorflow-datasets data.")]
