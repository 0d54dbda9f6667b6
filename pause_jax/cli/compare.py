"""The commands on presets and config files: ``pause-jax compare``, ``run`` and ``show``."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Annotated

import typer

from pause_jax.base.registry import look_up
from pause_jax.base.struct import ConfigError
from pause_jax.cli.execute import execute
from pause_jax.cli.options import Request, Rounds, Set, Source
from pause_jax.cli.output import Output
from pause_jax.cli.settings import about, base_config, changed, load_files
from pause_jax.config import SimConfig, config_file, validate
from pause_jax.config.presets import PRESETS
from pause_jax.privacy import MECHANISMS, Mechanism, NoPrivacy

DEMO_POLICIES = "pause,sa_pause,random,fastest,all,all:none"
_SOURCE, _REQUEST, _ONE_SEED = Source(), Request(), Request(seeds=1)


def compare(
    policies: Annotated[
        str,
        typer.Option(
            help="Comma-separated policies (see 'pause-jax policies'). NAME:MECHANISM gives "
            f"one its own privacy mechanism: {', '.join(m.name for m in MECHANISMS)}."
        ),
    ] = DEMO_POLICIES,
    preset: Annotated[
        str, typer.Option(help=f"Setting to compare them in: {', '.join(PRESETS)}.")
    ] = "digits_small",
    rounds: Rounds = None,
    source: Source = _SOURCE,
    request: Request = _REQUEST,
) -> None:
    """Compare selection policies on one data set, with the same worlds for all."""
    make = _preset(preset, f"--preset {preset}")
    load_files(source.load)
    for setting in source.change or ():
        if setting.partition("=")[0].strip() == "policy":
            raise ConfigError(
                f"--set {setting}: every row would have that policy under another's name. Name the "
                "policies by --policies."
            )
    configs: dict[str, SimConfig] = {}
    for entry in filter(None, map(str.strip, policies.split(","))):
        policy, colon, mechanism = entry.partition(":")
        label = policy
        config = make(policy=policy, data_dir=source.data_dir)
        if rounds is not None:
            config = config.replace(num_rounds=rounds)
        config = changed(config, source.change, trust=source.trust)
        if colon:
            config = config.replace(privacy=_mechanism(mechanism, config.privacy))
            label += f", {'no privacy' if mechanism == NoPrivacy.name else mechanism}"
        if label in configs:
            raise ConfigError(f"--policies {policies}: {entry} is named twice.")
        configs[label] = config
    if not configs:
        raise ConfigError("--policies is empty: name at least one (see 'pause-jax policies').")
    execute(configs, request, default_name=f"compare-{preset}")


def run(
    bases: Annotated[
        list[str], typer.Argument(help=f"Config files (TOML), or any of {', '.join(PRESETS)}.")
    ],
    rounds: Rounds = None,
    source: Source = _SOURCE,
    request: Request = _ONE_SEED,
) -> None:
    """Run the simulations of one or more configs and compare them.

    A config is a preset's name, or a file: what 'pause-jax show PRESET' prints, with fields
    changed or left out.
    """
    load_files(source.load)
    configs: dict[str, SimConfig] = {}
    for base in bases:
        stem = pathlib.Path(base).stem
        config = base_config(base, source, rounds=rounds)
        with about(base):
            validate(config)
        configs[stem if stem not in configs else base] = config
    execute(configs, request, default_name=pathlib.Path(bases[0]).stem)


def show(
    preset: Annotated[str, typer.Argument(help=f"One of {', '.join(PRESETS)}.")],
    policy: Annotated[str | None, typer.Option(help="Policy, if not the preset's own.")] = None,
    change: Set = None,
) -> None:
    """Print a preset as a config file, to start a custom config from."""
    make = _preset(preset, preset)
    config = changed(make() if policy is None else make(policy=policy), change)
    validate(config)
    Output().out(config_file.dumps(config), end="", highlight=False)


def _preset(name: str, where: str) -> Callable[..., SimConfig]:
    if name not in PRESETS:
        raise ConfigError(f"{where}: must be one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def _mechanism(name: str, current: Mechanism) -> Mechanism:
    """The mechanism of that name, with the budget of the current one; itself if it has the name."""
    named = look_up(Mechanism, name, "privacy")
    return current if type(named) is type(current) else named.with_budget(current.budget)
