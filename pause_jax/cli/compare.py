"""Commands ``compare``, ``run``, ``sweep`` and ``show``, for presets and config files."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated

import typer
from rich.console import Console

from pause_jax.base.struct import ConfigError, prefixed
from pause_jax.cli.execute import execute
from pause_jax.cli.options import Base, Request, Source
from pause_jax.cli.settings import base_config, grid, valid_config
from pause_jax.config import SimConfig, config_file, validate
from pause_jax.config.presets import PRESETS
from pause_jax.privacy import NoPrivacy

_COMPARED = Source(policy="pause,sa_pause,random,fastest,all,all:none")
# Three seeds are too few to find significant differences in the default comparison.
_FIVE_SEEDS = Request(seeds=5)
_ONE_SEED = Request(seeds=1)


def compare(
    *,
    preset: Annotated[
        str, typer.Option(help=f"Config file (TOML) or preset: {', '.join(PRESETS)}.")
    ] = "digits_small",
    source: Source = _COMPARED,
    request: Request = _FIVE_SEEDS,
) -> None:
    """Compare selection policies on the same data and simulated latencies."""
    for setting in source.change or ():
        if setting.partition("=")[0].strip() == "policy":
            raise ConfigError(
                f"--set {setting}: must not set the policy, which compare varies. Use --policies."
            )
    configs: dict[str, SimConfig] = {}
    for entry in filter(None, map(str.strip, (source.policy or "").split(","))):
        policy, colon, mechanism = entry.partition(":")
        words = "no privacy" if mechanism == NoPrivacy.name else mechanism
        label = f"{policy}, {words}" if colon else policy
        if label in configs:
            raise ConfigError(f"--policies {source.policy}: {entry} is listed twice. Remove one.")
        configs[label] = valid_config(preset, dataclasses.replace(source, policy=entry))
    if not configs:
        raise ConfigError(
            "--policies is empty. List at least one policy (see 'pause-jax policies')."
        )
    execute(configs, request, default_name=f"compare-{pathlib.Path(preset).stem}")


def run(
    bases: Annotated[
        list[str], typer.Argument(help=f"Config files (TOML) or presets: {', '.join(PRESETS)}.")
    ],
    source: Source,
    request: Request = _ONE_SEED,
) -> None:
    """Simulate one or more configs and compare the results.

    Each config is a preset, or a file in the format that 'pause-jax show PRESET' prints. Fields
    that a file omits keep their defaults.
    """
    configs: dict[str, SimConfig] = {}
    for base in bases:
        stem = pathlib.Path(base).stem
        label = stem if stem not in configs else base
        if label in configs or bases.count(base) > 1:
            raise ConfigError(f"{base} is listed twice. List each config once.")
        configs[label] = valid_config(base, source)
    execute(configs, request, default_name=pathlib.Path(bases[0]).stem)


def sweep(
    base: Base,
    *,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=A,B,...",
            help="Field and its values, e.g. reward.gamma=0,1,5. Repeat --vary for a grid. Enclose "
            "list values in brackets, e.g. learning.model.hidden=[32],[16,8].",
        ),
    ] = None,
    source: Source,
    request: Request,
) -> None:
    """Run every combination of the values of --vary, on all local devices or on a Dask cluster.

    All values of a traced number, such as reward.gamma, share one compilation. Each value of
    num_selected needs its own compilation. The Dask cluster may run under SLURM, PBS or Kubernetes.
    """
    configs = grid(base_config(base, source), vary or [])
    for label, config in configs.items():
        with prefixed(f"{base}, {label}" if vary else base):
            validate(config)
    execute(configs, request, default_name=f"sweep-{pathlib.Path(base).stem}")


def show(base: Base, source: Source) -> None:
    """Print a config with all its fields, as a template for a custom config."""
    Console().out(config_file.dumps(valid_config(base, source)), end="", highlight=False)
