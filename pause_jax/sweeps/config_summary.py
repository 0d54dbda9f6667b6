"""The labelled arrays of a sweep, from its rows and from what is known of its configs in words.

All that labels need is plain values: they can be put on rows by a process that has neither the data
set nor the user's classes (:mod:`pause_jax.sweeps.merge`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from pause_jax.base.client_ids import plain
from pause_jax.base.spelling import shortest
from pause_jax.base.struct import fields, is_node, nested
from pause_jax.config import SimConfig
from pause_jax.run.record.quantity import Quantity
from pause_jax.run.record.result import Result
from pause_jax.run.rounds.horizon import evaluated_rounds
from pause_jax.sweeps.provenance import without_addresses

if TYPE_CHECKING:
    import xarray as xr


class ConfigSummary(NamedTuple):
    """One config of a sweep in plain values.

    Attributes:
      label: its name in the sweep.
      toml: its file.
      data: SHA-256 of its data set, empty without learning.
      sizes: rounds, clients and slots.
      eval_rounds: after which rounds the model is evaluated.
      fields: every choice's name and every value, by dotted path.
      client_ids: of its clients; empty where they are called by their numbers.
    """

    label: str
    toml: str
    data: str
    sizes: dict[str, int]
    eval_rounds: list[int]
    fields: dict[str, Any]
    client_ids: Sequence[str] = ()


class Variable(NamedTuple):
    """A recorded quantity without its function; see :class:`~pause_jax.Quantity`."""

    name: str
    dims: tuple[str, ...]
    unit: str
    gap: float
    doc: str


class Rows(NamedTuple):
    """Finished runs of configs of one static structure.

    Attributes:
      number: of runs.
      values: by quantity, with a leading axis of runs.
      epsilon_unit, num_parameters, unnoised: as in ``Result``.
    """

    number: int
    values: dict[str, np.ndarray]
    epsilon_unit: str
    num_parameters: int
    unnoised: tuple[str, ...]


class Finished(NamedTuple):
    """Finished runs of one config: the numbers of their seeds, and the rows of all of its group."""

    seeds: np.ndarray
    places: np.ndarray
    rows: Rows


def summarised(
    label: str, config: SimConfig, toml: str, data: str, client_ids: Sequence[str]
) -> ConfigSummary:
    """The summary of a canonical config."""
    sizes = {"round": config.num_rounds, "client": config.num_clients, "slot": config.num_slots}
    values = {path: _plain(value) for path, value in _leaves(config)}
    evaluated = evaluated_rounds(config).tolist()
    return ConfigSummary(label, toml, data, sizes, evaluated, values, list(client_ids))


def variable(q: Quantity) -> Variable:
    """A quantity in words."""
    return Variable(q.name, q.dims, q.unit, q.gap, q.doc)


def rows_of(result: Result) -> Rows:
    """The rows of a batch's result, NumPy arrays."""
    # What NumPy has no kind of (bfloat16) no file has either.
    values = {
        name: value.astype(np.float32) if value.dtype.kind == "V" else value
        for name, value in jax.tree.map(np.asarray, result.values).items()
    }
    number = len(result.eval_rounds)
    return Rows(number, values, result.epsilon_unit, result.num_parameters, result.unnoised)


def concatenated(parts: Sequence[Rows]) -> Rows:
    """The rows of several chunks of a group."""
    values = {
        name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values
    }
    return parts[0]._replace(number=sum(part.number for part in parts), values=values)


def by_config(
    labels: Sequence[str], runs: np.ndarray, rows: Rows, num_seeds: int
) -> dict[str, Finished]:
    """What is finished of each config of a group.

    Args:
      labels: of the group's configs.
      runs: int [N], the number of each row's run, config-major.
      rows: of these runs.
      num_seeds: of each config.
    """
    found = {}
    for i, label in enumerate(labels):
        places = np.flatnonzero(runs // num_seeds == i)
        if places.size:
            places = places[np.argsort(runs[places])]
            found[label] = Finished(runs[places] % num_seeds, places, rows)
    return found


def labelled(
    summaries: Sequence[ConfigSummary],
    finished: Mapping[str, Finished],
    variables: Sequence[Variable],
    keys: np.ndarray,
    attributes: Mapping[str, str],
) -> xr.Dataset:
    """One dataset with dimension config, gaps filled.

    Args:
      summaries: of the configs to hold, each of which has finished runs.
      finished: by label.
      variables: what was recorded.
      keys: uint32 [S, words], data of the seeds' keys.
      attributes: of the whole.
    """
    import xarray as xr  # with pandas it takes a second

    whole = xr.concat(
        [_of_config(each, finished[each.label], variables) for each in summaries],
        dim=xr.Variable("config", [each.label for each in summaries]),
        join="outer",
        fill_value={each.name: each.gap for each in variables},
        data_vars="all",
        coords="different",
        compat="equals",
    )
    differing = _differing([each.fields for each in summaries])
    # Some fields are called as a quantity is: `clock`, `latency`.
    named = {f"{path}.name" if path in whole else path: v for path, v in differing.items()}
    whole = whole.assign_coords({path: ("config", values) for path, values in named.items()})
    for name in ("epsilon_unit", "num_parameters", "unnoised", "config_toml", "data_digest"):
        if whole[name].ndim == 0:
            whole = whole.assign_coords({name: ("config", [whole[name].item()] * len(summaries))})
    whole = whole.assign_coords(key=(("seed", "word"), keys[whole.seed.values]))
    whole = whole.assign_coords(_client_ids(summaries, whole.sizes["client"]))
    for each in variables:
        units = {"units": each.unit} if each.unit else {}
        whole[each.name].attrs.update(units, description=each.doc)
    whole.attrs.update(attributes)
    return whole


def _of_config(
    each: ConfigSummary, finished: Finished, variables: Sequence[Variable]
) -> xr.Dataset:
    import xarray as xr

    rows = finished.rows
    return xr.Dataset(
        {v.name: (("seed", *v.dims), rows.values[v.name][finished.places]) for v in variables},
        coords={
            "seed": finished.seeds,
            "round": np.arange(1, each.sizes["round"] + 1),
            "eval_round": np.asarray(each.eval_rounds),
            "client": np.arange(each.sizes["client"]),
            "slot": np.arange(each.sizes["slot"]),
            "epsilon_unit": rows.epsilon_unit,
            "num_parameters": rows.num_parameters,
            "unnoised": ", ".join(rows.unnoised),
            "config_toml": each.toml,
            "data_digest": each.data,
        },
    )


def _client_ids(summaries: Sequence[ConfigSummary], number: int) -> dict[str, Any]:
    """The coordinate ``client_id``, of each config where they differ; none if nobody has ids."""
    if not any(each.client_ids for each in summaries):
        return {}
    named = [each.client_ids or plain(each.sizes["client"]) for each in summaries]
    table = np.asarray([[*ids, *[""] * (number - len(ids))] for ids in named])
    if (table == table[0]).all():
        return {"client_id": ("client", table[0])}
    return {"client_id": (("config", "client"), table)}


def _differing(flat: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The fields in which configs differ, by dotted path: a column with a value for each config."""
    paths = dict.fromkeys(path for values in flat for path in values)
    columns = {path: _column([values.get(path) for values in flat]) for path in paths}
    return {path: column for path, column in columns.items() if len(set(map(str, column))) > 1}


def _leaves(config: SimConfig) -> Iterator[tuple[str, Any]]:
    """Every choice's name and every value of a config, by dotted path."""
    for path, part in nested(config):
        if path and part.name:
            yield path, part.name
        for name, value, _, field in fields(part):
            if not is_node(field):
                yield f"{path}.{name}" if path else name, value


def _plain(value: Any) -> Any:
    """A number, None or a text."""
    if isinstance(value, jax.Array | np.ndarray):
        return shortest(value)
    if value is None or isinstance(value, int | float):
        return value
    return without_addresses(str(value))


def _column(values: list[Any]) -> list[Any]:
    """Values of one field in several configs, None where one has no such field, as one kind: floats
    if all are, else text.
    """
    if all(isinstance(value, int | float) or value is None for value in values):
        return [np.nan if value is None else shortest(value) for value in values]
    return ["" if value is None else str(value) for value in values]
