"""The command line: ``pause-jax``, the same as ``python -m pause_jax.cli``."""

from __future__ import annotations

import pathlib
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from pause_jax import config_file
from pause_jax.cache import cache_folder
from pause_jax.cli import audit as cli_audit
from pause_jax.cli import sweep as cli_sweep
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
    changed,
    load_files,
    simulate_and_report,
)
from pause_jax.config import SimConfig, validate
from pause_jax.engine.sweep import SweepInterrupted
from pause_jax.learning import DATASETS
from pause_jax.policies import NAMED
from pause_jax.presets import PRESETS
from pause_jax.privacy import MECHANISMS, Mechanism, NoPrivacy
from pause_jax.struct import Config, ConfigError, look_up

app = typer.Typer(
    help="Client selection for federated learning, simulated in JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

DEMO_POLICIES = "pause,sa_pause,random,fastest,all,all:none"


@app.command()
def compare(
    policies: Annotated[
        str,
        typer.Option(
            help="Comma-separated policies (see 'pause-jax policies'). NAME:MECHANISM gives one a "
            f"privacy mechanism of its own: {', '.join(m.name for m in MECHANISMS)}."
        ),
    ] = DEMO_POLICIES,
    preset: Annotated[
        str, typer.Option(help=f"Setting to compare them in: {', '.join(PRESETS)}.")
    ] = "digits_small",
    seeds: Seeds = 3,
    seed: Seed = 0,
    rounds: Annotated[int | None, typer.Option(help="Rounds, if not the preset's.")] = None,
    data_dir: DataDir = None,
    change: Set = None,
    load: Load = None,
    target: Target = 0.8,
    name: Name = None,
    out: Out = pathlib.Path("results"),
    force: Force = False,
    figures: Figures = True,
) -> None:
    """Compare selection policies on one data set, with the same worlds for all."""
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: must be one of {', '.join(PRESETS)}.")
    load_files(load)
    configs: dict[str, SimConfig] = {}
    for entry in filter(None, (part.strip() for part in policies.split(","))):
        policy, _, mechanism = entry.partition(":")
        config = PRESETS[preset](policy=policy, data_dir=data_dir)
        if rounds is not None:
            config = config.replace(num_rounds=rounds)
        config = changed(config, change)
        label = policy
        if entry.endswith(":"):
            raise ConfigError(f"--policies {policies}: {entry} names no mechanism after the colon.")
        if mechanism:
            config = config.replace(privacy=_mechanism(mechanism, config.privacy))
            label = f"{policy}, {'no privacy' if mechanism == NoPrivacy.name else mechanism}"
        if label in configs:
            raise ConfigError(f"--policies {policies}: {entry} is named twice.")
        configs[label] = config
    if not configs:
        raise ConfigError("--policies is empty: name at least one (see 'pause-jax policies').")
    simulate_and_report(
        configs,
        seeds=seeds,
        seed=seed,
        target=target,
        folder_name=name or f"compare-{preset}",
        name=name,
        out=out,
        force=force,
        figures=figures,
    )


@app.command()
def run(
    files: Annotated[list[pathlib.Path], typer.Argument(help="Config files (TOML).")],
    seeds: Seeds = 1,
    seed: Seed = 0,
    change: Set = None,
    load: Load = None,
    target: Target = 0.8,
    name: Name = None,
    out: Out = pathlib.Path("results"),
    force: Force = False,
    figures: Figures = True,
) -> None:
    """Run the simulations of one or more config files and compare them.

    A file is what 'pause-jax show PRESET' prints, with fields changed or left out.
    """
    load_files(load)
    configs: dict[str, SimConfig] = {}
    for file in files:
        label = file.stem if file.stem not in configs else str(file)
        configs[label] = changed(config_file.load(file), change)
    simulate_and_report(
        configs,
        seeds=seeds,
        seed=seed,
        target=target,
        folder_name=name or files[0].stem,
        name=name,
        out=out,
        force=force,
        figures=figures,
    )


@app.command()
def show(
    preset: Annotated[str, typer.Argument(help=f"One of {', '.join(PRESETS)}.")],
    policy: Annotated[str | None, typer.Option(help="Policy, if not the preset's own.")] = None,
    change: Set = None,
) -> None:
    """Print a preset as a config file, to start one's own from."""
    if preset not in PRESETS:
        raise ConfigError(f"{preset}: must be one of {', '.join(PRESETS)}.")
    config = PRESETS[preset]() if policy is None else PRESETS[preset](policy=policy)
    config = changed(config, change)
    validate(config)
    sys.stdout.write(config_file.dumps(config))


@app.command("policies")
def list_policies() -> None:
    """List the selection policies: what each observes and what it assumes known."""
    name = Column("name", no_wrap=True)
    table = Table(name, "what it does", "observes", "assumes known", "reference")
    for label, policy in NAMED.items():
        note = "" if label == policy.name else f" ({_difference(policy)})"
        released = "".join(f"; released: {what}" for what in policy.releases)
        table.add_row(
            label,
            policy.summary + note,
            policy.observes + released,
            policy.assumes,
            policy.reference,
        )
    Console().print(table)


@app.command("datasets")
def list_datasets() -> None:
    """List the data sets, and where decoded images are kept."""
    table = Table("name", "what it is", "decoded and cached")
    for data in DATASETS:
        cached = (cache_folder() / f"{data.name}.npz").is_file()
        needs = "no download" in data.summary
        table.add_row(data.name, data.summary, "-" if needs else "yes" if cached else "no")
    Console().print(table)
    Console().print(
        f"cache folder: {cache_folder()} (safe to delete; $PAUSE_JAX_CACHE moves it). "
        "Programs that were compiled are kept in its folder compiled/."
    )


app.command("audit")(cli_audit.audit)
app.command("sweep")(cli_sweep.sweep)


def _difference(policy: Config) -> str:
    """What sets a named setting apart from the default of its policy."""
    default = config_file.to_dict(type(policy)())
    parts = []
    for field, value in config_file.to_dict(policy).items():
        if value != default[field]:
            chosen = value["name"] if isinstance(value, dict) else value
            kind = value.get("neighbourhood", "") if isinstance(value, dict) else ""
            parts.append(f"{field} = {chosen}" + (f", neighbourhood {kind}" if kind else ""))
    return ", ".join(parts)


def _mechanism(name: str, current: Mechanism) -> Mechanism:
    """The mechanism of a name, on the current one's budget; the current one if that is its name."""
    if name == current.name:
        return current
    return look_up(Mechanism, name, "privacy").with_budget(current.budget)


def main() -> None:
    """Entry point: a bad config is one line on standard error and exit status 2."""
    try:
        app()
    except (ConfigError, SweepInterrupted) as error:
        # A message may hold brackets that are no markup: pause_jax[plot].
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        sys.exit(2)
