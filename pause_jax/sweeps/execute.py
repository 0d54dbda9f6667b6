"""Runs a sweep that was prepared: what is missing, with everything that is finished kept."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pause_jax.run.record.recorder import Record
from pause_jax.run.record.result import Result
from pause_jax.run.rounds.state import State
from pause_jax.sweeps import distributed, leases
from pause_jax.sweeps.batch import run_chunks
from pause_jax.sweeps.checkpoint import Checkpoint, Point
from pause_jax.sweeps.config_summary import Rows, rows_of
from pause_jax.sweeps.merge import chunks_of, join
from pause_jax.sweeps.prepare import SweepPlan
from pause_jax.sweeps.store import LOG, Store
from pause_jax.sweeps.workers import Workers

if TYPE_CHECKING:
    import xarray as xr

Chunk = tuple[int, int]  # its group and its first run

# Seconds between two looks at what other shards have finished.
LOOK_EVERY = 1.0


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
    """The part of a sweep that one shard ran.

    Attributes:
      chunks, runs: that this process ran.
      open: chunks that other shards still run.
    """

    chunks: int
    runs: int
    open: int


class SweepRun:
    """A sweep that runs.

    Attributes:
      plan: all of the sweep.
      store: keeps finished chunks; None to keep nothing.
      workers: run the chunks; None to run them in this process.
      rows: finished chunks.
    """

    def __init__(self, plan: SweepPlan, store: Store | None, workers: Workers | None = None):
        self.plan, self.store, self.workers = plan, store, workers
        # The chunking of the sweep that was begun counts: on other cores it would be another.
        self.plans = plan.plans if store is None else store.kept.plans
        self.chunks = chunks_of(self.plans)
        self.rows: dict[Chunk, Rows] = {}

    def whole(self, *, progress: bool = True) -> xr.Dataset:
        """Run everything that is missing; see :func:`pause_jax.sweep`."""
        try:
            with contextlib.ExitStack() as stack:
                if self.store is not None and distributed.is_first():
                    stack.enter_context(self.store.locked())
                self._read()
                bar = stack.enter_context(_Bar.shown(self.plans, progress))
                bar.skip(self.rows)
                missing = [chunk for chunk in self.chunks if chunk not in self.rows]
                source = self._run_here if self.workers is None else self._run_by_workers
                for chunk, rows in source(missing, bar):
                    self.rows[chunk] = rows
        except (KeyboardInterrupt, RuntimeError) as error:
            raise self._interrupted(error) from error
        data = join(self.plan.made_by, self.plans, self.rows).data
        assert data is not None
        return data

    def part(self, shard: tuple[int, int], *, progress: bool = True) -> Share:
        """Run chunks that no other shard runs; see :func:`pause_jax.run_shard`."""
        assert self.store is not None
        number, shards = shard
        ran = runs = 0
        claims = leases.Leases()
        try:
            with contextlib.closing(claims), _Bar.shown(self.plans, progress) as bar:
                bar.skip(set(self.chunks) - set(self._unfinished()))
                for missing in self._missing(number - 1, shards, claims):
                    for _, rows in self._run_here(missing, bar, claims):  # the store has them
                        ran, runs = ran + 1, runs + rows.number
        except (KeyboardInterrupt, RuntimeError) as error:
            raise SweepInterrupted(
                f"shard {number}/{shards} stopped ({type(error).__name__}: {error or 'interrupt'}) "
                f"after {runs} runs; finished chunks are in {self.store.folder}, and the same "
                "command goes on there.",
                None,
            ) from error
        return Share(ran, runs, len(self._unfinished()))

    def _unfinished(self) -> list[Chunk]:
        assert self.store is not None
        return [chunk for chunk in self.chunks if not self.store.path(*chunk).exists()]

    def _missing(self, place: int, shards: int, claims: leases.Leases) -> Iterator[Sequence[Chunk]]:
        """Chunks to ask for: those where this shard begins, so that few ask for the same, then all.
        At last a chunk of a shard that died: so long this shard waits that its lease has expired.
        """
        assert self.store is not None
        for chunks in (self.chunks[place::shards], self.chunks):
            unfinished = set(self._unfinished())
            yield [each for each in chunks if each in unfinished and not self.store.failed]
        since = time.monotonic()
        while (missing := self._unfinished()) and not self.store.failed:
            free = (each for each in missing if claims.claim(self.store.lease_path(*each)))
            if chunk := next(free, None):
                yield [chunk]
                since = time.monotonic()
            elif time.monotonic() - since > leases.EXPIRES + LOOK_EVERY:
                return
            else:
                time.sleep(LOOK_EVERY)

    def _run_here(
        self, missing: Sequence[Chunk], bar: _Bar, claims: leases.Leases | None = None
    ) -> Iterator[tuple[Chunk, Rows]]:
        """Run chunks in this process, group by group."""
        for number, group in enumerate(self.plan.groups):
            firsts = [first for g, first in missing if g == number]
            if not firsts:
                continue
            words = ", ".join(prepared.label for prepared in group)
            words = words if len(words) < 40 else f"{words[:37]}..."
            bar.describe(f"{words} (compiling ...)")
            threads = min(len(firsts), self.plan.plans[number].threads)
            batch = self.plan.batch(number, self.plans[number]._replace(threads=threads))
            keeper = None
            if self.store is not None:
                keeper = _Keeper(self.store, number, bar.advance, claims)
            tick = functools.partial(bar.advance, 1, words)
            # One by one: what came before a failure is kept.
            for first, result in run_chunks(batch, tick, firsts, keeper):
                yield (number, first), rows_of(result)

    def _run_by_workers(self, missing: Sequence[Chunk], bar: _Bar) -> Iterator[tuple[Chunk, Rows]]:
        """Hand chunks to workers, and keep what comes back."""
        assert self.workers is not None
        bar.describe("on workers")
        for chunk, rows in self.workers.run(self.plan.made_by, self.plans, missing):
            if self.store is not None:
                self.store.save(*chunk, rows)
                Checkpoint(self.store, *chunk).drop()
            bar.skip([chunk])
            yield chunk, rows

    def _read(self) -> None:
        """Take finished chunks from the store, and say so."""
        if self.store is None:
            return
        for chunk in self.chunks:
            rows = self.store.rows(*chunk)
            if rows is not None:
                self.rows[chunk] = rows
        if jax.process_count() > 1:
            distributed.check_same(
                repr(list(self.rows)),
                f"do not see the same files in {self.store.folder}: choose a folder that all see.",
            )
        begun = [each for each in self.chunks if self.store.checkpoint_path(*each).exists()]
        if self.rows or begun:
            LOG.info(
                "%s: goes on; %d of %d chunks are finished%s.",
                self.store.folder,
                len(self.rows),
                len(self.chunks),
                f", {len(begun)} were begun" if begun else "",
            )

    def _interrupted(self, error: BaseException) -> SweepInterrupted:
        """What to raise when the sweep has stopped early."""
        finished = join(self.plan.made_by, self.plans, self.rows)
        advice = "Take a smaller memory_limit or max_batch." if "memory" in str(error) else ""
        why = f"{type(error).__name__}: {error or 'interrupt'}"
        return SweepInterrupted(f"stopped after {finished.words} ({why}). {advice}", finished.data)


class _Keeper:
    """Keeps the chunks of a group in a store, and runs those that it may claim."""

    def __init__(
        self,
        store: Store,
        group: int,
        skipped: Callable[[int], object],
        claims: leases.Leases | None,
    ) -> None:
        self._store, self._group, self._skipped, self._claims = store, group, skipped, claims
        self._checkpoints: dict[int, Checkpoint] = {}
        self._several = jax.process_count() > 1

    def claimed(self, first: int) -> bool:
        if self._claims is not None:
            lease = self._store.lease_path(self._group, first)
            if not self._claims.claim(lease):
                return False
            if self._store.path(self._group, first).exists():  # another shard was sooner
                self._claims.release(lease)
                return False
        if distributed.is_first():
            self._store.tidy(self._group, first)
        return True

    def resumed(
        self, first: int, state: State, shapes: Callable[[int], list[Any]]
    ) -> tuple[int, State, list[Record]]:
        if self._several:
            return 0, state, []
        checkpoint = self._checkpoints[first] = Checkpoint(self._store, self._group, first)
        point = checkpoint.restored(state, shapes)
        if point is None:
            return 0, state, []
        self._skipped(point.segments)
        LOG.info("a chunk goes on after %d of its segments.", point.segments)
        return point

    def checkpoint(
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
        if self._claims is not None:
            self._claims.release(self._store.lease_path(self._group, first))


class _Bar:
    """The progress of a sweep, in segments of its chunks, on the terminal's standard error."""

    def __init__(self, bar: Progress, task: TaskID, segments: Sequence[int]):
        self._bar, self._task, self._segments = bar, task, segments

    @classmethod
    @contextlib.contextmanager
    def shown(cls, plans: Sequence[Any], show: bool) -> Iterator[_Bar]:
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
            total = sum(each.segments * len(each.firsts) for each in plans)
            yield cls(bar, bar.add_task("", total=total), [each.segments for each in plans])

    def describe(self, words: str) -> None:
        self._bar.update(self._task, description=words)

    def advance(self, segments: int, words: str | None = None) -> None:
        self._bar.update(self._task, advance=segments, description=words)

    def skip(self, chunks: Iterable[Chunk]) -> None:
        """Count whole chunks as done."""
        self.advance(sum(self._segments[group] for group, _ in chunks))
