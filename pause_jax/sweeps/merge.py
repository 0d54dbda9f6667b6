"""A result from finished chunks, by plain values alone: ``merge(store)`` has no data set, nor the
user's classes.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pause_jax.base.struct import ConfigError
from pause_jax.sweeps.chunks import Chunking
from pause_jax.sweeps.config_summary import (
    ConfigSummary,
    Finished,
    Rows,
    Variable,
    by_config,
    concatenated,
    labelled,
)
from pause_jax.sweeps.provenance import fingerprint
from pause_jax.sweeps.store import Store

if TYPE_CHECKING:
    import xarray as xr


class Joined(NamedTuple):
    """What is finished of a sweep.

    Attributes:
      data: of the configs that are finished; if none is, the finished seeds of those that were
        begun; None if nothing was.
      words: how much is finished.
    """

    data: xr.Dataset | None
    words: str


def chunks_of(plans: Sequence[Chunking]) -> list[tuple[int, int]]:
    """All chunks of a sweep, by group and first run."""
    return [(group, first) for group, chunking in enumerate(plans) for first in chunking.firsts]


def join(
    made_by: Mapping[str, Any], plans: Sequence[Chunking], rows: Mapping[tuple[int, int], Rows]
) -> Joined:
    """Join finished chunks.

    Args:
      made_by: of the sweep.
      plans: how each of its groups is cut into chunks.
      rows: finished chunks, by group and first run.
    """
    summaries, num_seeds = (
        [ConfigSummary(**each) for each in made_by["summaries"]],
        len(made_by["keys"]),
    )
    finished: dict[str, Finished] = {}
    for number, (labels, chunking) in enumerate(zip(made_by["groups"], plans, strict=True)):
        firsts = [first for group, first in sorted(rows) if group == number]
        if firsts:
            of_group = concatenated([rows[number, first] for first in firsts])
            runs = [
                np.arange(first, min(first + chunking.batch, chunking.num_runs)) for first in firsts
            ]
            finished |= by_config(labels, np.concatenate(runs), of_group, num_seeds)
    begun = [each for each in summaries if each.label in finished]
    whole = [each for each in begun if len(finished[each.label].seeds) == num_seeds]
    runs_finished = sum(len(each.seeds) for each in finished.values())
    num_runs = len(summaries) * num_seeds
    count = f"{runs_finished} of {num_runs} runs, {len(whole)} of {len(summaries)} configs"
    if not begun:
        return Joined(None, count)
    attributes = {
        **{name: made_by["versions"][name] for name in ("pause_jax", "jax")},
        "code": made_by["code"],
        "made_by": fingerprint(made_by),
        "key_impl": made_by["key_impl"],
        "interrupted": "no" if runs_finished == num_runs else f"after {count}",
    }
    data = labelled(
        whole or begun,
        finished,
        [Variable(**each) for each in made_by["recorded"]],
        np.asarray(made_by["keys"], np.uint32),
        attributes,
    )
    return Joined(data, count)


def merge(store: str | os.PathLike[str], *, partial: bool = False) -> xr.Dataset:
    """Join the finished runs of a sweep's shards.

    Args:
      store: their folder.
      partial: join the finished runs, if some are missing.

    Returns:
      The dataset that :func:`pause_jax.sweep` gives; ``attrs["interrupted"]`` says if not all.

    Raises:
      ConfigError: if the folder holds no sweep; if runs are missing, with the command that runs
        them.
    """
    kept = Store.opened(pathlib.Path(store))
    made_by, plans = kept.kept.made_by, kept.kept.plans
    found = {chunk: kept.rows(*chunk) for chunk in chunks_of(plans)}
    joined = join(made_by, plans, {chunk: rows for chunk, rows in found.items() if rows})
    missing = [chunk for chunk, rows in found.items() if rows is None]
    if joined.data is None or (missing and not partial):
        for chunk in missing:
            kept.remove_damaged(*chunk)  # a shard does not read what others have finished
        again = "one of its shards" if made_by["shards"] > 1 else "the sweep"
        # The command is that of the process that came first, whichever shard it was.
        command = kept.kept.about.get("command", "")
        raise ConfigError(
            f"{kept.folder}: {joined.words} are there. Start {again} again"
            + (f", as in: {command}" if command else "")
            + (
                ". Or join what is there: --partial, in Python partial=True."
                if joined.data
                else "."
            )
        )
    return joined.data
