"""The ``pause-jax gauntlet`` command, which runs a policy on the benchmark."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Annotated

import typer
from rich.console import Console

from pause_jax.analysis.table import make_table, word
from pause_jax.base.checks import check_fields
from pause_jax.base.registry import LOADED
from pause_jax.base.spelling import listed
from pause_jax.base.struct import ConfigError
from pause_jax.cli import result_folder
from pause_jax.cli.options import load_files
from pause_jax.cli.settings import changed
from pause_jax.policies import PolicyConfig, named


def gauntlet(
    policy: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.py[:CLASS]|NAME",
            help="Python file with a policy class, or a name from 'pause-jax policies'.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Field to change. May be repeated."),
    ] = None,
    track: Annotated[str, typer.Option(help="Data set: digits or fashion.")] = "digits",
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of prepared data sets (for --track fashion).")
    ] = None,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Compare with tuned policies (default: untuned).")
    ] = False,
    only: Annotated[str | None, typer.Option(help="Comma-separated fleets (default: all).")] = None,
    out: Annotated[pathlib.Path, typer.Option(help="Folder for all results.")] = pathlib.Path(
        "results"
    ),
    verify: Annotated[
        int, typer.Option(help="Number of randomly chosen stored runs to replay and check.", min=0)
    ] = 0,
) -> None:
    """Run a policy on the benchmark, and compare it with the stored results of other policies.

    The result folder contains the policy's standings (standings.csv, .md and .tex), a heat map of
    all policies (heatmap.pdf) and all scores (scores.nc).
    """
    # Import lazily, because xarray and matplotlib take a second to import.
    from pause_jax.analysis.gauntlet import board, picture, standings

    chosen_fleets = None if only is None else only.split(",")
    if verify:
        replayed = board.verify(
            verify, track=track, tuned=tuned, only=chosen_fleets, data_dir=data_dir
        )
        typer.echo(replayed.to_string(index=False))
        equal = int(replayed["equal"].sum())
        largest = float((replayed["replayed"] - replayed["stored"]).abs().max())
        typer.echo(
            f"{equal} of {verify} replayed runs match the stored results. The largest difference "
            f"in late accuracy is {largest:.2f} points."
        )
    if policy is None:
        if not verify:
            raise ConfigError("Pass a policy name or a Python file, or use --verify.")
        raise typer.Exit(int(equal < verify))
    for extra, module in (("report", "jinja2"), ("report", "tabulate"), ("plot", "matplotlib")):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"{module} is required. Run pip install 'pause_jax[{extra}]'.")
    chosen = changed(_found(policy), change)
    check_fields(chosen)
    folder = result_folder.reserve(out, f"gauntlet-{chosen.name}", explicit=False)
    try:
        scores = board.gauntlet(
            chosen, track=track, tuned=tuned, only=chosen_fleets, data_dir=data_dir
        )
    except BaseException:
        result_folder.give_back(folder)
        raise
    label = str(scores.policy.values[-1])
    typer.echo(f"{label}: {chosen!r}")
    table = standings.standings(scores, label)
    text = standings.formatted(table)
    scores.to_netcdf(folder / "scores.nc", engine="h5netcdf")
    table.to_csv(folder / "standings.csv")
    (folder / "standings.md").write_text(text.to_markdown(disable_numparse=True), "utf-8")
    setting = f"{track} track, other policies with {'tuned' if tuned else 'default'} parameters"
    (folder / "standings.tex").write_text(standings.latex(text, label, setting), "utf-8")
    picture.draw(scores, folder / "heatmap.pdf", label)
    rows = ([str(fleet), *row] for fleet, row in text.T.items())
    Console().print(make_table([word(x) for x in ("fleet", *text.columns)], rows))
    typer.echo(standings.conclusion(table, label))
    typer.echo(f"Clients send without noise: {', '.join(chosen.releases) or 'nothing'}.")
    typer.echo(board.server_time(chosen, scores, track, data_dir))
    typer.echo(f"Written to {folder}/")


def _found(text: str) -> PolicyConfig:
    """Return the policy named by the command-line argument ``text``."""
    file, _, name = text.partition(":")
    if not file.endswith(".py"):
        return named(text)
    load_files([pathlib.Path(file)])
    entries = LOADED[pathlib.Path(file).name]
    classes = {
        key: entry
        for key, entry in entries.items()
        if isinstance(entry, type) and issubclass(entry, PolicyConfig)
        # Exclude imported classes.
        if entry.__module__ == entries["__name__"]
    }
    chosen = {key: entry for key, entry in classes.items() if name in ("", key)}
    if len(chosen) != 1:
        found = f"has the policy classes {listed(classes)}" if classes else "has no policy class"
        raise ConfigError(f"{file} {found}. Pass {file}:CLASS with one of its policy classes.")
    return next(iter(chosen.values()))()
