"""The command ``pause-jax sweep``: a grid of numbers or choices, on one host or many."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from pause_jax.base.struct import ConfigError
from pause_jax.cli.execute import Request, execute
from pause_jax.cli.options import (
    DataDir,
    Figures,
    Force,
    Load,
    Log,
    Name,
    Out,
    Report,
    Resume,
    Seed,
    Seeds,
    Set,
    Target,
    Trust,
)
from pause_jax.cli.settings import about, base_config, grid, load_files
from pause_jax.cli.shards import execute_shard, shard_of
from pause_jax.config import validate
from pause_jax.config.presets import PRESETS
from pause_jax.sweep import distributed


def sweep(
    base: Annotated[
        str, typer.Argument(help=f"Config file (TOML) or one of {', '.join(PRESETS)}.")
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=A,B,...",
            help="Values of a field, e.g. reward.gamma=0,1,5; repeat it for a grid. A value that "
            "is a list stands in brackets: learning.model.hidden=[32],[16,8].",
        ),
    ] = None,
    seeds: Seeds = 3,
    seed: Seed = 0,
    change: Set = None,
    load: Load = None,
    trust: Trust = False,
    data_dir: DataDir = None,
    max_batch: Annotated[
        int | None, typer.Option(help="Runs at once at most; from the memory if left out.")
    ] = None,
    target: Target = 0.8,
    name: Name = None,
    out: Out = pathlib.Path("results"),
    force: Force = False,
    resume: Resume = False,
    figures: Figures = True,
    report: Report = True,
    log: Log = None,
    store: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="FOLDER", help="Keep what is finished there, for --shard and merge."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="NUMBER/SHARDS", help="Play one part alone, say 3/16, into --store."),
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of process 0, if there are several.")
    ] = None,
    num_processes: Annotated[int | None, typer.Option(help="How many there are.")] = None,
    process_id: Annotated[int | None, typer.Option(help="Of this one, from 0.")] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Ask SLURM, Open MPI, ... for those three.")
    ] = False,
) -> None:
    """Run every combination of some values, spread over all devices of all processes.

    Values that are numbers share one compilation. With several processes start the same command
    in each, with its own --process-id; the first one prints and writes. If one dies the others
    stop, and what was finished is kept. Shards need not run at the same time: each plays its part
    into the store, and 'pause-jax merge' joins them.
    """
    load_files(load)
    part = None if shard is None else shard_of(shard)
    configs = grid(base_config(base, data_dir, change, trust=trust), vary or [], trust=trust)
    for label, config in configs.items():
        with about(f"{base}, {label}" if vary else base):
            validate(config)
    if cluster or (coordinator, num_processes, process_id) != (None, None, None):
        if cluster and coordinator is not None:
            raise ConfigError("--cluster asks the cluster; leave out --coordinator and its two.")
        typer.echo("waiting for the other processes (300 s at most)", err=True)
        if part is not None:
            raise ConfigError(f"--shard {shard}: a shard is one process. Leave out --process-id.")
        distributed.start(coordinator, num_processes, process_id)
    request = Request(
        seeds,
        seed,
        target,
        name,
        out,
        force,
        figures,
        resume,
        max_batch,
        store,
        report,
        tuple(log or ()),
    )
    if part is not None:
        execute_shard(configs, request, part)
        return
    execute(configs, request, default_name=f"sweep-{pathlib.Path(base).stem}")
