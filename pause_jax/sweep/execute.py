"""Plays a sweep that was prepared: what is missing, with everything that is finished kept."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pause_jax.run.record.recorder import Record
from pause_jax.run.record.result import Result
from pause_jax.run.state import State
from pause_jax.sweep import distributed
from pause_jax.sweep.batch import Batch, play
from pause_jax.sweep.checkpoint import Checkpoint, Point
from pause_jax.sweep.config_summary import Rows, rows_of
from pause_jax.sweep.merge import chunks_of, join
from pause_jax.sweep.prepare import SweepPlan
from pause_jax.sweep.store import LOG, Store

# Seconds between two savings of the middle of a chunk.
SAVE_EVERY = 60.0


class SweepInterrupted(RuntimeError):  # noqa: N818, as KeyboardInterrupt
    """A sweep that stopped early.

    Attributes:
      finished: the data of the configs that were finished; if none was, the finished seeds of those
        that were begun; or None.
    """

    def __init__(self, message: str, finished: xr.Dataset | None):
        super().__init__(message)
        self.finished = finished


class Share(NamedTuple):
    """What one shard of a sweep has finished."""

    chunks: int
    runs: int


class SweepRun:
    """A sweep that is being played, or a shard of it.

    Attributes:
      plan: all of the sweep.
      store: keeps what is finished; None to keep nothing.
      shard: (number of the part from 1, number of all parts); None to play everything.
      rows: finished chunks, by group and first run.
    """

    def __init__(self, plan: SweepPlan, store: Store | None, shard: tuple[int, int] | None = None):
        self.plan, self.store, self.shard = plan, store, shard
        # The chunking of the sweep that was begun counts: on other cores it would be another.
        self.plans = plan.plans if store is None else store.kept.plans
        chunks = chunks_of(self.plans)
        number, shards = shard or (1, 1)
        self.mine = chunks[number - 1 :: shards]
        self.rows: dict[tuple[int, int], Rows] = {}

    def whole(self, *, save_every: float = SAVE_EVERY, progress: bool = True) -> xr.Dataset:
        """Play everything; see :func:`pause_jax.sweep`."""
        try:
            for _ in self._chunks(save_every, progress):
                pass
        except (KeyboardInterrupt, RuntimeError) as error:
            raise self._interrupted(error) from error
        data = join(self.plan.made_by, self.plans, self.rows).data
        assert data is not None
        return data

    def part(self, *, save_every: float = SAVE_EVERY, progress: bool = True) -> Share:
        """Play a shard; see :func:`pause_jax.play_shard`."""
        assert self.store is not None
        assert self.shard is not None
        finished = 0
        try:
            for chunk in self._chunks(save_every, progress):
                finished += self.rows.pop(chunk).number  # the store has it
        except (KeyboardInterrupt, RuntimeError) as error:
            number, shards = self.shard
            raise SweepInterrupted(
                f"shard {number}/{shards} stopped ({type(error).__name__}: {error or 'interrupt'}) "
                f"after {finished} runs; what is finished is in {self.store.folder}, and the same "
                "command goes on there.",
                None,
            ) from error
        return Share(len(self.mine), finished)

    def _chunks(self, save_every: float, progress: bool) -> Iterator[tuple[int, int]]:
        """Play what is missing, chunk by chunk."""
        plan, store = self.plan, self.store
        with contextlib.ExitStack() as held:
            if store is not None and distributed.is_first():
                held.enter_context(store.locked(0 if self.shard is None else self.shard[0]))
            self._read()
            there = list(self.rows)
            left = [chunk for chunk in self.mine if chunk not in self.rows]
            yield from there
            bar = held.enter_context(_progress(progress))
            ticks = {g: chunking.segments for g, chunking in enumerate(self.plans)}
            task = bar.add_task(
                "",
                total=sum(ticks[g] for g, _ in self.mine),
                completed=sum(ticks[g] for g, _ in there),
            )
            for number, group in enumerate(plan.groups):
                firsts = [first for g, first in left if g == number]
                if not firsts:
                    continue
                labels = ", ".join(prepared.label for prepared in group)
                words = labels if len(labels) < 40 else f"{labels[:37]}..."
                bar.update(task, description=f"{words} (compiling ...)")
                threads = min(len(firsts), plan.plans[number].threads)
                chunking = self.plans[number]._replace(threads=threads)
                keeper = None
                if store is not None:
                    keeper = _Keeper(store, number, save_every, lambda n: bar.advance(task, n))
                stacked = jax.tree.map(
                    lambda *x: np.stack(x), *(prepared.config for prepared in group)
                )
                batch = Batch(
                    configs=stacked,
                    data=group[0].data,
                    keys=plan.keys,
                    chunking=chunking,
                    quantities=plan.quantities,
                    execution=plan.execution,
                    mesh=plan.mesh,
                )
                tick = functools.partial(bar.update, task, advance=1, description=words)
                runs = play(batch, tick, firsts, keeper)
                for first, result in runs:  # one by one: what came before a failure is kept
                    self.rows[number, first] = rows_of(result)
                    yield number, first

    def _read(self) -> None:
        """Take what is finished from the store, and say so."""
        if self.store is None:
            return
        for chunk in self.mine:
            if distributed.is_first():
                self.store.tidy(*chunk)
            rows = self.store.rows(*chunk)
            if rows is not None:
                self.rows[chunk] = rows
        if jax.process_count() > 1:
            distributed.check_same(
                repr(list(self.rows)),
                f"do not see the same files in {self.store.folder}: choose a folder that all see.",
            )
        middles = [each for each in self.mine if self.store.checkpoint_path(*each).exists()]
        if self.rows or middles:
            LOG.info(
                "%s: goes on; %d of %d chunks are finished%s.",
                self.store.folder,
                len(self.rows),
                len(self.mine),
                f", {len(middles)} were begun" if middles else "",
            )

    def _interrupted(self, error: BaseException) -> SweepInterrupted:
        """What to raise when the sweep has stopped early."""
        finished = join(self.plan.made_by, self.plans, self.rows)
        advice = "Take a smaller memory_limit or max_batch." if "memory" in str(error) else ""
        why = f"{type(error).__name__}: {error or 'interrupt'}"
        return SweepInterrupted(f"stopped after {finished.words} ({why}). {advice}", finished.data)


class _Keeper:
    """Keeps the chunks of a group in a store."""

    def __init__(
        self, store: Store, group: int, every: float, skipped: Callable[[int], object]
    ) -> None:
        self._store, self._group, self._every, self._skipped = store, group, every, skipped
        self._checkpoints: dict[int, Checkpoint] = {}
        self._several = jax.process_count() > 1

    def resumed(
        self, first: int, state: State, shapes: Callable[[int], list[Any]]
    ) -> tuple[int, State, list[Record]]:
        if self._several:
            return 0, state, []
        checkpoint = self._checkpoints[first] = Checkpoint(
            self._store, self._group, first, self._every
        )
        point = checkpoint.restored(state, shapes)
        if point is None:
            return 0, state, []
        self._skipped(point.segments)
        LOG.info("a chunk goes on after %d of its segments.", point.segments)
        return point

    def played(
        self, first: int, segments: int, state: State, records: list[Record], *, ending: bool
    ) -> None:
        if not self._several:
            checkpoint, point = self._checkpoints[first], Point(segments, state, records)
            (checkpoint.save if ending else checkpoint.save_if_due)(point)

    def finished(self, first: int, result: Result) -> None:
        if distributed.is_first():
            self._store.save(self._group, first, rows_of(result))
        if not self._several:
            self._checkpoints.pop(first).drop()


@contextlib.contextmanager
def _progress(show: bool) -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    disable = not (show and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        yield bar
