"""The command ``pause-jax sweep``: a grid of numbers or choices, on one host or many."""

from __future__ import annotations

import itertools
import pathlib
from typing import Annotated, Any

import typer

from pause_jax import config_file
from pause_jax.cli.execute import Request, execute
from pause_jax.cli.options import (
    DataDir,
    Figures,
    Force,
    Load,
    Name,
    Out,
    Seed,
    Seeds,
    Set,
    Target,
)
from pause_jax.cli.settings import about, base_config, load_files
from pause_jax.config import SimConfig, validate
from pause_jax.engine import distributed
from pause_jax.presets import PRESETS
from pause_jax.struct import ConfigError


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
    data_dir: DataDir = None,
    max_batch: Annotated[
        int | None, typer.Option(help="Runs at once at most; from the memory if left out.")
    ] = None,
    target: Target = 0.8,
    name: Name = None,
    out: Out = pathlib.Path("results"),
    force: Force = False,
    figures: Figures = True,
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
    stop, and what was finished is kept.
    """
    load_files(load)
    configs = grid(base_config(base, data_dir, change), vary or [])
    for label, config in configs.items():
        with about(f"{base}, {label}" if vary else base):
            validate(config)
    if cluster or (coordinator, num_processes, process_id) != (None, None, None):
        if cluster and coordinator is not None:
            raise ConfigError("--cluster asks the cluster; leave out --coordinator and its two.")
        typer.echo("waiting for the other processes (300 s at most)", err=True)
        distributed.start(coordinator, num_processes, process_id)
    request = Request(seeds, seed, target, name, out, force, figures, max_batch)
    execute(configs, request, default_name=f"sweep-{pathlib.Path(base).stem}")


def grid(config: SimConfig, vary: list[str]) -> dict[str, SimConfig]:
    """Every combination of the values of ``PATH=A,B,...``, labelled by what it sets.

    Raises:
      ConfigError: for an entry that is not of that form, or a path that does not exist.
    """
    axes: list[list[tuple[str, str, Any]]] = []
    for entry in vary:
        path, equals, values = entry.partition("=")
        texts = _separate(values)
        if not equals or not all(texts):
            raise ConfigError(f"--vary {entry}: must be PATH=A,B,..., say reward.gamma=0,1,5.")
        if len(set(texts)) < len(texts):
            raise ConfigError(f"--vary {entry}: a value is named twice.")
        if path in (axis[0][0] for axis in axes):
            raise ConfigError(f"--vary {entry}: {path} is varied twice.")
        axes.append([(path, text, config_file.parse_value(config, path, text)) for text in texts])
    # The last word of a path says enough, unless two paths end in the same one.
    short = {axis[0][0]: axis[0][0].rpartition(".")[2] for axis in axes}
    if len(set(short.values())) < len(short):
        short = {path: path for path in short}
    configs = {}
    for point in itertools.product(*axes):
        label = ", ".join(f"{short[path]} = {text}" for path, text, _ in point)
        label = label or config.policy.name
        configs[label] = config.override({path: value for path, _, value in point})
    return configs


def _separate(values: str) -> list[str]:
    """The values of a comma-separated list, whose own lists are in brackets."""
    parts, depth = [""], 0
    for letter in values:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
