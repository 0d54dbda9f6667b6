"""Shared sweeps: ``sweep --shard``, ``pause-jax merge``, and ``pause-jax slurm``."""

from __future__ import annotations

import pathlib
import re
import shlex
import sys
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax
import typer

from pause_jax.base.compilation import use_cache
from pause_jax.base.struct import ConfigError
from pause_jax.cli import result_folder
from pause_jax.cli.execute import check_output, described, end, not_written
from pause_jax.cli.options import (
    Base,
    Figures,
    Force,
    MaxBatch,
    Name,
    Out,
    Request,
    Seed,
    Seeds,
    Source,
    Target,
    Vary,
)
from pause_jax.cli.output import Output
from pause_jax.cli.publish import publish
from pause_jax.cli.settings import varied
from pause_jax.cli.stopping import stoppable
from pause_jax.config import SimConfig
from pause_jax.sweeps.execute import SweepInterrupted, SweepRun
from pause_jax.sweeps.merge import merge as join
from pause_jax.sweeps.prepare import plan_sweep
from pause_jax.sweeps.store import Store
from pause_jax.sweeps.sweep import checked_shard, opened_store

# Seconds before its end at which a task is warned: it ends its segment and saves.
NOTICE = 120


def shard_of(text: str) -> tuple[int, int]:
    """``3/16`` as numbers.

    Raises:
      ConfigError: if it is not of that form, or there is no such shard.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise ConfigError(f"--shard {text}: must be NUMBER/SHARDS, say 3/16.")
    return checked_shard((int(match[1]), int(match[2])))


def execute_shard(
    configs: Mapping[str, SimConfig], request: Request, shard: tuple[int, int]
) -> None:
    """Run chunks of a sweep into ``request.store`` that no other shard runs.

    Raises:
      ConfigError: before any run.
      typer.Exit: as ``execute``.
    """
    if request.store is None:
        raise ConfigError("--shard: needs --store FOLDER, the same for all shards.")
    check_output(request.seeds, request.target, figures=False)
    number, shards = shard
    with stoppable():
        use_cache()
        keys = jax.random.split(jax.random.key(request.seed), request.seeds)
        plan = plan_sweep(configs, keys, max_batch=request.max_batch, shards=shards)
        store = opened_store(
            plan, request.store, {**described(request.seed), "target": request.target}
        )
        try:
            share = SweepRun(plan, store).part(shard)
        except SweepInterrupted as error:
            end(error)
    if store.failed:
        raise ConfigError(f"{store.folder}: cannot be written ({store.failed}).")
    others = f"{share.open} still run in other shards" if share.open else "all are finished"
    Output().print(
        f"shard {number}/{shards}: ran {share.runs} runs in {share.chunks} chunks; {others}. "
        f"Join them: pause-jax merge {store.folder}",
        highlight=False,
        soft_wrap=True,
    )


def merge(
    folder: Annotated[pathlib.Path, typer.Argument(help="The --store of the shards.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Join what is there, if something is missing.")
    ] = False,
    target: Target = 0.8,
    name: Name = None,
    out: Out = pathlib.Path("results"),
    force: Force = False,
    figures: Figures = True,
) -> None:
    """Join the shards of a sweep, or say which are missing; prints and writes what 'sweep' does."""
    check_output(1, target, figures=figures)
    result = join(folder, partial=partial)
    about = Store.opened(folder).kept.about
    default = folder.resolve().name
    place = result_folder.reserve(out, name or default, explicit=name is not None, force=force)
    try:
        told: dict[str, Any] = {key: about[key] for key in ("command", "seed") if key in about}
        result = result.assign_attrs(told)
        kept = {name: result.attrs[name] for name in ("made_by", "interrupted")}
        failure = publish(result, place, {**told, **kept}, target, figures=figures)
        if failure is not None:
            not_written(failure, place, f"The shards are still in {folder}.")
        Output().print(f"Written to {place}/")
    finally:
        result_folder.give_back(place)


class JobArray(NamedTuple):
    """A job array: the options of those names."""

    shards: Annotated[int, typer.Option(min=1, help="Tasks of the job array.")]
    time: Annotated[str, typer.Option(help="Limit of a task, as SLURM has it: 2:00:00.")]
    store: Annotated[
        pathlib.Path, typer.Option(help="Folder that all tasks see, for finished runs.")
    ]
    cpus: Annotated[int, typer.Option(min=1, help="Cores of a task.")] = 2
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Another line for sbatch, e.g. --partition=long."),
    ] = None


_SOURCE = Source()


def slurm(
    base: Base,
    array: JobArray,
    vary: Vary = None,
    seeds: Seeds = 3,
    seed: Seed = 0,
    source: Source = _SOURCE,
    max_batch: MaxBatch = None,
) -> None:
    """Print a job-array script for SLURM that runs a sweep in shards: > job.sh, sbatch job.sh.

    A task that is cut off by its limit or by the cluster is queued again and resumes.
    """
    varied(base, source, vary)
    program = pathlib.Path(sys.executable).with_name("pause-jax")
    words = [str(program) if program.exists() else "pause-jax", "sweep", base]
    for option, values in (("--vary", vary), ("--set", source.change), ("--load", source.load)):
        for value in values or ():
            words += [option, str(value)]
    words += ["--seeds", str(seeds), "--seed", str(seed)]
    words += [] if source.data_dir is None else ["--data-dir", source.data_dir]
    words += [] if max_batch is None else ["--max-batch", str(max_batch)]
    words += ["--trust"] if source.trust else []
    words += ["--store", str(array.store)]
    lines = [
        # Its name may hold a line break, and a shell runs the lines of a script.
        "--job-name=pause-jax-" + re.sub(r"[^\w.-]", "_", pathlib.Path(base).stem),
        f"--array=1-{array.shards}",
        f"--time={array.time}",
        f"--cpus-per-task={array.cpus}",
        "--requeue",
        "--open-mode=append",
        f"--signal=B:TERM@{NOTICE}",
        *(array.sbatch or ()),
    ]
    script = _SCRIPT.format(
        directives="\n".join(f"#SBATCH {line}" for line in lines),
        command=shlex.join(words),
        shards=array.shards,
    )
    Output().out(script, end="", highlight=False)


_SCRIPT = """#!/usr/bin/env bash
{directives}

# SLURM tells this shell before the limit; the sweep saves what it has and ends with status 143.
told=
trap 'told=yes; kill -TERM "$sweep"' TERM
{command} --shard "$SLURM_ARRAY_TASK_ID/{shards}" &
sweep=$!
wait "$sweep"
status=$?
if [ -n "$told" ]; then
  wait "$sweep"
  status=$?
fi
if [ "$status" -eq 143 ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$status"
"""
