"""The ``pause-jax import`` command, which converts published data to the library's formats."""

from __future__ import annotations

import importlib
import pathlib
from typing import Annotated

import typer

from pause_jax.base.spelling import nearest
from pause_jax.base.struct import ConfigError
from pause_jax.cli.options import Seed
from pause_jax.importers.request import DATA, DEVICES, INTERVALS, Request, ids_of

# Names of the modules in ``pause_jax.importers``, one per source.
SOURCES = ("fedscale", "leaf", "huggingface")
# Suggested options for each output file.
_NEXT = {
    DEVICES: "--set latency=network --set latency.path={}",
    INTERVALS: "--set availability_trace=intervals --set availability_trace.path={}",
    DATA: "--set learning.data=files --set learning.data.path={} --set learning.partition=natural",
}


def import_files(
    source: Annotated[str, typer.Argument(help=f"Source of the files: {', '.join(SOURCES)}.")],
    files: Annotated[list[pathlib.Path], typer.Argument(help="Downloaded files.")],
    out: Annotated[pathlib.Path, typer.Option(help="Folder for the converted files.")],
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of clients, drawn at random."),
    ] = None,
    ids: Annotated[
        pathlib.Path | None,
        typer.Option(help="clients.npz file with the client ids to use in the output."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="OURS=THEIRS,...", help="Column names in the file, e.g. client=user."),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Convert published data to devices.csv, intervals.csv or clients.npz.

    docs/guides/public_files.md describes the origin, licence and content of each source.
    """
    if source not in SOURCES:
        raise ConfigError(
            f"SOURCE = {source!r}: must be one of {', '.join(SOURCES)}.{nearest(source, SOURCES)}"
        )
    if ids is not None and clients is not None:
        raise ConfigError("--ids and --clients cannot be combined. Remove --clients.")
    request = Request(
        paths=tuple(files),
        clients=clients,
        seed=seed,
        ids=ids_of(str(ids)) if ids else (),
        columns=_columns(columns),
    )
    # Import lazily, because some sources need packages that other commands do not.
    imported = importlib.import_module(f"pause_jax.importers.{source}").read(request)
    for path in imported.write(out):
        typer.echo(f"{path}  {_NEXT.get(path.name, '').format(path)}".rstrip())
    for note in imported.notes:
        typer.echo(note)


def _columns(text: str | None) -> dict[str, str]:
    """Parse ``--columns`` into a mapping from the library's column names to the file's."""
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair.strip()]
    for ours, sign, theirs in pairs:
        if not (ours.strip() and sign and theirs.strip()):
            raise ConfigError(f"--columns {text}: must be OURS=THEIRS pairs, separated by commas.")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
