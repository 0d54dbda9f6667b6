"""Execution of a planned sweep, which skips chunks that have already finished."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pause_jax.base.stopping import check_stop
from pause_jax.sweeps.batch import run_chunks
from pause_jax.sweeps.executor import Workers
from pause_jax.sweeps.labels import Rows, labelled
from pause_jax.sweeps.plan import Chunk, SweepPlan
from pause_jax.sweeps.store import Store

if TYPE_CHECKING:
    import xarray as xr


class SweepInterrupted(RuntimeError):  # noqa: N818, as KeyboardInterrupt
    """Error raised when a sweep stops early.

    Attributes:
      finished: dataset of the configs whose runs have all finished or, if there is no such config,
        of all finished runs. None if no run has finished.
    """

    def __init__(self, message: str, finished: xr.Dataset | None):
        super().__init__(message)
        self.finished = finished


def execute(
    plan: SweepPlan, store: Store | None, workers: Workers | None, *, progress: bool = True
) -> xr.Dataset:
    """Run the missing chunks of a sweep, on workers or in this process, and label all results.

    Raises:
      ConfigError: if another process is running the sweep in the same store.
      SweepInterrupted: if the sweep is interrupted or fails.
    """
    if store is not None:
        plan = store.plan
    rows: dict[Chunk, Rows] = {}
    try:
        with contextlib.ExitStack() as stack:
            if store is not None:
                stack.enter_context(store.locked())
                rows |= store.finished()
            bar = stack.enter_context(_progress_bar(progress))
            task = bar.add_task("", total=plan.segments(plan.chunks), completed=plan.segments(rows))
            update = functools.partial(bar.update, task)
            missing = [chunk for chunk in plan.chunks if chunk not in rows]
            if workers is None:
                finished = _run_locally(plan, missing, store, update)
            else:
                finished = _run_by_workers(plan, missing, store, update, workers)
            for chunk, chunk_rows in finished:
                rows[chunk] = chunk_rows
    except (KeyboardInterrupt, RuntimeError) as error:
        data, words = labelled(plan, rows)
        advice = "Take a smaller memory_limit or max_batch." if "memory" in str(error) else ""
        interrupt = isinstance(error, KeyboardInterrupt)
        why = (str(error) or "Ctrl-C") if interrupt else f"{type(error).__name__}: {error}"
        raise SweepInterrupted(f"stopped after {words} ({why}). {advice}", data) from error
    data, _ = labelled(plan, rows)
    assert data is not None
    return data


def _run_locally(
    plan: SweepPlan, missing: Sequence[Chunk], store: Store | None, update: Callable[..., None]
) -> Iterator[tuple[Chunk, Rows]]:
    """Run chunks in this process, group by group, and yield each chunk with its rows."""
    check_stop()
    for group, chunks in itertools.groupby(missing, key=lambda chunk: chunk.group):
        labels = ", ".join(prepared.label for prepared in plan.groups[group])
        labels = labels if len(labels) < 40 else f"{labels[:37]}..."
        update(description=f"{labels} (compiling ...)")

        def tick(segments: int, labels: str = labels) -> None:
            update(advance=segments, description=labels)

        yield from run_chunks(plan, list(chunks), tick, store)


def _run_by_workers(
    plan: SweepPlan,
    missing: Sequence[Chunk],
    store: Store | None,
    update: Callable[..., None],
    workers: Workers,
) -> Iterator[tuple[Chunk, Rows]]:
    """Run chunks on the workers, and save and yield each chunk when its rows arrive."""
    update(description="on workers")
    for chunk, rows in workers.run(plan, missing):
        if store is not None:
            store.save(chunk, rows)
        update(advance=plan.segments([chunk]))
        yield chunk, rows


def _progress_bar(show: bool) -> Progress:
    """Return a progress bar on standard error, disabled without ``show`` or without a terminal."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not (show and console.is_terminal),
    )
