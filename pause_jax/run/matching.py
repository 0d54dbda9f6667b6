"""Who is who: a run's data set and the files of its fleet call clients by the same ids."""

from __future__ import annotations

from typing import Any

from pause_jax.base.client_ids import gap, listed, plain
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.learning import Dataset


def client_ids(config: SimConfig, data: Any) -> tuple[str, ...]:
    """Ids of clients 0, ..., K - 1.

    Data and files number clients in the natural order of their ids, so client k is the same
    everywhere if the first K ids are.

    Args:
      config: of the run, its files loaded.
      data: what ``Learning.load`` returned; None without learning.

    Returns:
      The ids; empty where they are the numbers 0, 1, ..., and where nobody gave any.

    Raises:
      ConfigError: if two of data, ``latency``, ``availability_trace`` and budgets know other
        clients, if a file's numbers have gaps that the data lacks, and if the data's clients are
        drawn by the key.
    """
    number, of_data = config.num_clients, _of_data(config, data)
    files = {
        f"{part}.path = {getattr(model, 'path', '')!r}": model.client_ids
        for part, model in (
            ("latency", config.latency),
            ("availability_trace", config.availability_trace),
            ("privacy.budget.law", getattr(config.privacy.budget, "law", None)),
        )
        if model is not None and model.client_ids
    }
    if len(of_data) > number:
        if files:
            raise ConfigError(
                f"num_clients = {number}: of the data's {len(of_data)} clients as many are drawn "
                f"by the key, and {next(iter(files))} has the seconds of particular clients. Set "
                f"num_clients = {len(of_data)}, or leave samples of other clients out."
            )
        return ()
    for where, ids in files.items():
        if not of_data and (missing := gap(ids)):
            raise ConfigError(
                f"{where}: has no line of client {missing}. Number clients 0, 1, ... without gaps, "
                "or name them."
            )
    sources = {"the data": of_data} | files if of_data else files
    if not sources:
        return ()
    (first, own), *others = ((where, ids[:number]) for where, ids in sources.items())
    for where, ids in others:
        if ids != own:
            raise _other_clients(where, sources[where], first, own)
    return () if own == plain(number) else own


def _of_data(config: SimConfig, data: Any) -> tuple[str, ...]:
    """Ids of the data's clients, if those of the run are drawn from them."""
    learning = config.learning
    if learning is None or not learning.partition.keeps_clients or not isinstance(data, Dataset):
        return ()
    return data.client_ids or ()


def _other_clients(
    where: str, ids: tuple[str, ...], first: str, own: tuple[str, ...]
) -> ConfigError:
    missing = [each for each in own if each not in set(ids)]
    surplus = [each for each in ids if each not in set(own)]
    parts = [f"has no line of client {listed(missing)}"] if missing else []
    parts += [f"has client {listed(surplus)}, whom {first} does not have"] if surplus else []
    return ConfigError(
        f"{where}: {' and '.join(parts)}. Lines must be of the same clients, by their ids: leave "
        "out those of the others, or rename them."
    )
