"""Learning curves of runs of minutes to hours, played in pieces that survive an interruption.

A finished run is a table in ``runs/`` in the folder of its experiment, with one row per round. Its
first line holds a hash of its config and seed. A restarted experiment plays only the missing runs,
and an interrupted run continues from its last piece with the same result.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import typer
from jax import Array

import pause_jax
from pause_jax import SimConfig, config_file
from pause_jax.base.struct import Config, fields
from pause_jax.learning import Dataset, Execution
from pause_jax.run.preflight import prepare
from pause_jax.run.programs import plain_steps
from pause_jax.run.record.quantities import QUANTITIES
from pause_jax.run.record.result import Record
from pause_jax.run.rounds.loop import advance
from pause_jax.run.rounds.state import State

RECORDED = ("clock", "max_spent", "train_loss", "test_loss", "test_accuracy")
# Rounds per piece, and thus the most that an interruption can lose.
PIECE = 10


class Run(NamedTuple):
    """Run of an experiment: a config with its label, and the number of its seed."""

    label: str
    seed: int
    config: SimConfig

    @property
    def name(self) -> str:
        """Name of the run's file, without a suffix."""
        return f"{self.label.replace(' ', '_').replace(',', '')}-{self.seed}"

    @property
    def made_by(self) -> str:
        """Hash of the seed and the config, without data folder and form of convolution.

        Fields at their defaults do not count, so kept runs stay valid when a config gains a field,
        or when a field at its default is renamed.
        """
        learning = self.config.learning
        assert learning is not None, "a learning curve needs learning"
        here = self.config
        if hasattr(learning.data, "data_dir"):
            here = here.override({"learning.data.data_dir": None})
        if hasattr(learning.model, "convolution"):
            here = here.override({"learning.model.convolution": "auto"})
        text = json.dumps([self.seed, changes(here)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def changes(config: Config) -> dict[str, Any]:
    """Return the name of a config, and its fields that differ from their defaults."""
    of_class = type(config)()
    table, defaults = config_file.to_dict(config), config_file.to_dict(of_class)
    found: dict[str, Any] = {"name": config.name}
    for name, value, _, _ in fields(config):
        default = getattr(of_class, name)
        if isinstance(value, Config):
            inner = changes(value)
            if not isinstance(default, Config) or inner != changes(default):
                found[name] = inner
        elif table.get(name) != defaults.get(name):
            found[name] = table.get(name)
    return found


def key_of(seed: int) -> Array:
    """Return the random key of a numbered seed, independent of the number of seeds."""
    return jax.random.fold_in(jax.random.key(0), seed)


def runs_of(configs: Mapping[str, SimConfig], seeds: int) -> list[Run]:
    """Return the runs seed by seed: if stopped early, the first seeds have all curves."""
    return [Run(label, seed, configs[label]) for seed in range(seeds) for label in configs]


def play_all(
    runs: Iterable[Run],
    folder: pathlib.Path,
    data: Dataset | None = None,
    execution: Execution | None = None,
) -> pd.DataFrame:
    """Play the runs that ``folder/runs`` lacks, and read all runs.

    Args:
      runs: runs of an experiment.
      folder: folder of the experiment.
      data: data set of the configs, if the configs should not load it themselves.
      execution: execution options of local training.

    Returns:
      One row per round, with the columns label, seed, round and ``RECORDED``.
    """
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    tables = [_table(run, folder / "runs", data, execution) for run in runs]
    return pd.concat(tables, ignore_index=True)


def _table(
    run: Run, folder: pathlib.Path, given: Dataset | None, execution: Execution | None
) -> pd.DataFrame:
    path = folder / f"{run.name}.csv"
    if not (path.exists() and path.read_text().startswith(f"# {run.made_by} ")):
        table = _play(run, folder / f"{run.name}.npz", given, execution)
        part = path.with_suffix(".part")
        with part.open("w") as file:
            file.write(f"# {run.made_by} jax {jax.__version__} pause_jax {pause_jax.__version__}\n")
            table.to_csv(file, index=False, float_format="%.6g")
        part.rename(path)
        (folder / f"{run.name}.npz").unlink(missing_ok=True)
    return pd.read_csv(path, comment="#").assign(label=run.label, seed=run.seed)


def _play(
    run: Run, kept: pathlib.Path, given: Dataset | None, execution: Execution | None
) -> pd.DataFrame:
    config, data = prepare(run.config, given)
    state = _init(config, data, key_of(run.seed))
    record: dict[str, np.ndarray] = {}
    played = 0
    if kept.exists():
        saved = np.load(kept)
        if str(saved["made_by"]) == run.made_by:
            state = _restored(state, saved)
            record = {name: saved[name] for name in RECORDED}
            played = len(record["clock"])
    ended = False
    while played < config.num_rounds and not ended:
        rounds = jnp.arange(played + 1, min(played + PIECE, config.num_rounds) + 1)
        state, piece = _advance(config, data, state, rounds, execution)
        values = {name: np.asarray(value) for name, value in piece.items()}
        if played:
            values = {name: np.concatenate([record[name], values[name]]) for name in values}
        # Rounds that would start after ``max_seconds`` have no clock.
        played += int(np.isfinite(piece["clock"]).sum())
        ended = played < int(rounds[-1])
        record = {name: value[:played] for name, value in values.items()}
        _save(kept, run.made_by, state, record)
        accuracy = record["test_accuracy"]
        last = accuracy[np.isfinite(accuracy)][-1:]
        typer.echo(f"{run.name}: {played} rounds, {record['clock'][-1]:.1f} s, accuracy {last}")
    return pd.DataFrame({"round": np.arange(1, played + 1), **record})


# As in ``simulate``: all products except in training use full float32 precision on any device.
_ALL_BITS = "highest"


@jax.jit
def _init(config: SimConfig, data: Any, key: Array) -> State:
    return plain_steps((), None, any_length=False).init(config, data, key, 0)[0]


@functools.partial(jax.jit, donate_argnums=2, static_argnames="execution")
def _advance(
    config: SimConfig, data: Any, state: State, rounds: Array, execution: Execution | None
) -> tuple[State, Record]:
    quantities = tuple(QUANTITIES[name] for name in RECORDED)
    with jax.default_matmul_precision(_ALL_BITS):
        return advance(config, data, state, rounds, quantities, execution)


def _is_key(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _save(path: pathlib.Path, made_by: str, state: State, record: dict[str, Any]) -> None:
    leaves = [
        jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(state)
    ]
    arrays: dict[str, Any] = {f"state_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    part = path.with_suffix(".part.npz")
    np.savez(part, made_by=np.asarray(made_by), **arrays, **record)
    part.rename(path)


def _restored(like: State, saved: Mapping[str, np.ndarray]) -> State:
    leaves, structure = jax.tree.flatten(like)
    values = [jnp.asarray(saved[f"state_{i}"]) for i in range(len(leaves))]
    return jax.tree.unflatten(
        structure,
        [
            jax.random.wrap_key_data(value) if _is_key(leaf) else value
            for leaf, value in zip(leaves, values, strict=True)
        ],
    )
