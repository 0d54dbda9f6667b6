"""The command ``pause-jax sweep``: a grid of numbers or choices, on one host or many."""

from __future__ import annotations

import pathlib
from typing import Annotated, NamedTuple

import typer

from pause_jax.base.struct import ConfigError
from pause_jax.cli.dask import dask_executor
from pause_jax.cli.execute import execute
from pause_jax.cli.options import Base, MaxBatch, Request, Source, Vary
from pause_jax.cli.settings import varied
from pause_jax.cli.shards import execute_shard, shard_of
from pause_jax.sweeps import distributed


class Processes(NamedTuple):
    """The processes of a sweep that has several: the options of those names."""

    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of process 0, if there are several.")
    ] = None
    num_processes: Annotated[int | None, typer.Option(help="How many there are.")] = None
    process_id: Annotated[int | None, typer.Option(help="Of this one, from 0.")] = None
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Ask SLURM, Open MPI, ... for those three.")
    ] = False
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="SCHEDULER|local:N", help="Run on a Dask cluster, or on N processes here."
        ),
    ] = None


_SOURCE, _REQUEST, _ALONE = Source(), Request(), Processes()


def sweep(
    base: Base,
    vary: Vary = None,
    source: Source = _SOURCE,
    request: Request = _REQUEST,
    max_batch: MaxBatch = None,
    store: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="FOLDER", help="Keep finished runs there, for --shard and merge."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER/SHARDS", help="Share the sweep with other processes, by --store: 3/16."
        ),
    ] = None,
    processes: Processes = _ALONE,
) -> None:
    """Run every combination of some values, spread over all devices of all processes.

    Values that are numbers share one compilation. With several processes start the same command
    in each, with its own --process-id; the first one prints and writes. If one dies the others
    stop, and finished runs are kept. Shards come and go: each runs chunks into the store that no
    other one runs, and 'pause-jax merge' joins them.
    """
    part = None if shard is None else shard_of(shard)
    configs = varied(base, source, vary)
    _join(processes, shard)
    request = request._replace(max_batch=max_batch, store=store)
    name = f"sweep-{pathlib.Path(base).stem}"
    if processes.dask is not None:
        with dask_executor(processes.dask) as executor:
            execute(configs, request._replace(executor=executor), default_name=name)
    elif part is not None:
        execute_shard(configs, request, part)
    else:
        execute(configs, request, default_name=name)


def _join(processes: Processes, shard: str | None) -> None:
    """Join the other processes of a sweep that has several.

    Raises:
      ConfigError: for options that exclude each other, or if there are no others.
    """
    together = processes._replace(dask=None) != _ALONE
    if processes.dask is not None and (together or shard is not None):
        raise ConfigError("--dask: leave out --shard and --process-id; Dask shares the work.")
    if not together:
        return
    if processes.cluster and processes.coordinator is not None:
        raise ConfigError("--cluster asks the cluster; leave out --coordinator and its two.")
    if shard is not None:
        raise ConfigError(f"--shard {shard}: a shard is one process. Leave out --process-id.")
    typer.echo("waiting for the other processes (300 s at most)", err=True)
    distributed.start(processes.coordinator, processes.num_processes, processes.process_id)
