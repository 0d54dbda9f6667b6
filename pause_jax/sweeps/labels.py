"""Labelled dataset of a sweep, built from its finished chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from pause_jax.base.client_ids import plain
from pause_jax.base.spelling import shortest
from pause_jax.config import config_file
from pause_jax.run.preflight import client_ids
from pause_jax.run.record.result import Quantities, Result
from pause_jax.run.rounds.horizon import evaluated_rounds
from pause_jax.sweeps.plan import Chunk, PreparedConfig, SweepPlan
from pause_jax.sweeps.provenance import data_digest, describe_config, fingerprint

if TYPE_CHECKING:
    import xarray as xr


class Rows(NamedTuple):
    """Results of N runs that share a static structure, as arrays [N, ...] with shared metadata."""

    values: dict[str, np.ndarray]
    epsilon_unit: str
    num_parameters: int
    unnoised: tuple[str, ...]


def rows_of(result: Result) -> Rows:
    """Convert a batched result to rows of NumPy arrays."""
    # The npz format cannot store bfloat16.
    values = {
        name: value.astype(np.float32) if value.dtype.kind == "V" else value
        for name, value in jax.tree.map(np.asarray, result.values).items()
    }
    return Rows(values, result.epsilon_unit, result.num_parameters, result.unnoised)


class FinishedConfig(NamedTuple):
    """Rows of a config's finished runs, with their seed numbers."""

    seeds: np.ndarray
    rows: Rows


def labelled(plan: SweepPlan, chunks: Mapping[Chunk, Rows]) -> tuple[xr.Dataset | None, str]:
    """Build a labelled dataset from the finished chunks of a sweep.

    Returns:
      (dataset, progress message). The dataset contains the configs whose runs have all finished
      or, if there are none, all finished runs. It is None if no run has finished.
    """
    finished = _by_config(plan, chunks)
    num_seeds = len(plan.keys)
    begun = [each for each in plan.configs if each.label in finished]
    whole = [each for each in begun if len(finished[each.label].seeds) == num_seeds]
    num_finished = sum(len(each.seeds) for each in finished.values())
    num_runs = len(plan.configs) * num_seeds
    words = f"{num_finished} of {num_runs} runs, {len(whole)} of {len(plan.configs)} configs"
    if not begun:
        return None, words
    data = _dataset(whole or begun, finished, plan.quantities)
    keys = np.asarray(jax.random.key_data(plan.keys))
    data = data.assign_coords(key=(("seed", "word"), keys[data.seed.values]))
    data.attrs.update(
        pause_jax=plan.made_by["pause_jax"],
        jax=plan.made_by["jax"],
        code=plan.made_by["code of pause_jax"],
        made_by=fingerprint(plan.made_by),
        key_impl=plan.made_by["key_impl"],
        interrupted="no" if num_finished == num_runs else f"after {words}",
    )
    return data, words


def _by_config(plan: SweepPlan, chunks: Mapping[Chunk, Rows]) -> dict[str, FinishedConfig]:
    """Return the finished runs of each config, sorted by seed and keyed by config label."""
    finished = {}
    num_seeds = len(plan.keys)
    for number, (group, chunking) in enumerate(zip(plan.groups, plan.chunkings, strict=True)):
        firsts = sorted(chunk.first for chunk in chunks if chunk.group == number)
        if not firsts:
            continue
        parts = [chunks[Chunk(number, first)] for first in firsts]
        runs = np.concatenate([chunking.runs(first) for first in firsts])
        values = {
            name: np.concatenate([rows.values[name] for rows in parts]) for name in parts[0].values
        }
        for place, prepared in enumerate(group):
            of_config = runs // num_seeds == place
            if of_config.any():
                own = {name: value[of_config] for name, value in values.items()}
                rows = parts[0]._replace(values=own)
                finished[prepared.label] = FinishedConfig(runs[of_config] % num_seeds, rows)
    return finished


def _dataset(
    configs: Sequence[PreparedConfig],
    finished: Mapping[str, FinishedConfig],
    quantities: Quantities,
) -> xr.Dataset:
    """Concatenate the configs' datasets along ``config``, and pad smaller datasets."""
    import xarray as xr  # importing xarray takes a second, because it imports pandas

    data = xr.concat(
        [_config_dataset(each, finished[each.label], quantities) for each in configs],
        dim=xr.Variable("config", [each.label for each in configs]),
        join="outer",
        fill_value={q.name: q.gap for q in quantities},
        data_vars="all",
        coords=["epsilon_unit", "num_parameters", "unnoised", "config_toml", "data_digest"],
        compat="equals",
    )
    differing = _differing([describe_config(each.config) for each in configs])
    # Some fields, such as `clock` and `latency`, have the same name as a quantity.
    named = {f"{path}.name" if path in data else path: v for path, v in differing.items()}
    data = data.assign_coords({path: ("config", values) for path, values in named.items()})
    data = data.assign_coords(_client_ids(configs, data.sizes["client"]))
    for q in quantities:
        units = {"units": q.unit} if q.unit else {}
        data[q.name].attrs.update(units, description=q.doc)
    return data


def _config_dataset(
    prepared: PreparedConfig, finished: FinishedConfig, quantities: Quantities
) -> xr.Dataset:
    import xarray as xr

    config = prepared.config
    rows = finished.rows
    return xr.Dataset(
        {q.name: (("seed", *q.dims), rows.values[q.name]) for q in quantities},
        coords={
            "seed": finished.seeds,
            "round": np.arange(1, config.num_rounds + 1),
            "eval_round": evaluated_rounds(config),
            "client": np.arange(config.num_clients),
            "slot": np.arange(config.num_slots),
            "epsilon_unit": rows.epsilon_unit,
            "num_parameters": rows.num_parameters,
            "unnoised": ", ".join(rows.unnoised),
            "config_toml": config_file.dumps(config),
            "data_digest": data_digest(prepared.data),
        },
    )


def _client_ids(configs: Sequence[PreparedConfig], number: int) -> dict[str, Any]:
    """Return a ``client_id`` coordinate (per config if ids vary), or {} if no client has an id."""
    ids = [client_ids(each.config, each.data) for each in configs]
    if not any(ids):
        return {}
    named = [each or plain(of.config.num_clients) for each, of in zip(ids, configs, strict=True)]
    table = np.asarray([[*each, *[""] * (number - len(each))] for each in named])
    if (table == table[0]).all():
        return {"client_id": ("client", table[0])}
    return {"client_id": (("config", "client"), table)}


def _differing(flat: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the fields in which the configs differ, as values [config] keyed by path."""
    paths = dict.fromkeys(path for values in flat for path in values)
    columns = {path: _column([values.get(path) for values in flat]) for path in paths}
    return {path: column for path, column in columns.items() if len(set(map(str, column))) > 1}


def _column(values: list[Any]) -> list[Any]:
    """Convert the values of a field to floats if all are numbers, otherwise to strings.

    A missing value (None) becomes NaN or an empty string.
    """
    if all(isinstance(value, int | float) or value is None for value in values):
        return [np.nan if value is None else shortest(value) for value in values]
    return ["" if value is None else str(value) for value in values]
