"""The command ``pause-jax sweep``: a grid of numbers or choices, on one host or many."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from pause_jax.cli.dask import dask_executor
from pause_jax.cli.execute import execute
from pause_jax.cli.options import Base, MaxBatch, Request, Source, Vary
from pause_jax.cli.settings import varied

_SOURCE, _REQUEST = Source(), Request()


def sweep(
    base: Base,
    vary: Vary = None,
    source: Source = _SOURCE,
    request: Request = _REQUEST,
    max_batch: MaxBatch = None,
    store: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="FOLDER", help="Folder for finished runs, to keep and to resume."),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULER|local:N", help="Run on a Dask cluster, or on N processes here."
        ),
    ] = None,
) -> None:
    """Run every combination of some values, spread over all devices or a cluster.

    Values that are numbers share one compilation. A cluster is one of Dask, which may run under
    SLURM, PBS or Kubernetes.
    """
    configs = varied(base, source, vary)
    request = request._replace(max_batch=max_batch, store=store)
    name = f"sweep-{pathlib.Path(base).stem}"
    if dask is None:
        execute(configs, request, default_name=name)
        return
    with dask_executor(dask) as executor:
        execute(configs, request._replace(executor=executor), default_name=name)
