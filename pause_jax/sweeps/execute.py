"""Entry point for sweeps, ``sweep(configs, keys) -> xarray.Dataset``."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax import Array
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from pause_jax.base.stopping import check_stop
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.learning import Dataset
from pause_jax.run import contract
from pause_jax.run.record.quantity import Quantity
from pause_jax.sweeps.batch import run_chunks
from pause_jax.sweeps.executor import Executor, Workers
from pause_jax.sweeps.labels import Rows, labelled
from pause_jax.sweeps.plan import Chunk, SweepPlan, plan_sweep
from pause_jax.sweeps.store import Store

if TYPE_CHECKING:
    import xarray as xr


class SweepInterrupted(RuntimeError):  # noqa: N818, as KeyboardInterrupt
    """Error raised when a sweep stops early.

    Attributes:
      finished: dataset of the configs whose runs have all finished. If no config has finished,
        dataset of all finished runs, or None if no run has finished.
    """

    def __init__(self, message: str, finished: xr.Dataset | None):
        super().__init__(message)
        self.finished = finished


def sweep(
    configs: SimConfig | Sequence[SimConfig] | Mapping[str, SimConfig],
    keys: Array,
    *,
    data: Dataset | None = None,
    record: Sequence[str | Quantity] | None = None,
    memory_limit: float = 2.0,
    max_batch: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    client_batch: int | None = None,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Run every config with every key.

    Configs that differ only in traced numbers share a compiled program. Without custom components,
    a program usually supports any number of rounds. Built-in policies share a program unless they
    differ in cohort size or ``releases``, or set ``alone``. Sweeps use all devices and cores.

    Each row of the result equals ``simulate(config, key)`` up to rounding. If two cohorts are
    equally good up to rounding, ``sweep`` and ``simulate`` may choose differently and then diverge.

    Args:
      configs: one config, a sequence of configs, or a mapping from names to configs.
      keys: distinct typed keys [S], for example ``jax.random.split(jax.random.key(0), S)``.
      data: data set that replaces the data set of every config.
      record: quantities to record, as in :func:`simulate`.
      memory_limit: maximum estimated memory per device, in GiB. Overridden by ``max_batch``.
      max_batch: maximum number of concurrent runs (default: limited by ``memory_limit``), rounded
        up to a multiple of the number of devices or, on a single CPU, the number of active threads.
      devices: devices to run on (default: all devices).
      client_batch: maximum number of clients that a run trains in parallel (see :func:`simulate`).
      store: folder for finished runs and, if ``executor`` is None, checkpoints of unfinished runs
        (at most one per chunk per minute, and one when the sweep is stopped). A call with the same
        arguments resumes from this folder, even if the process was killed, and returns a result
        that is bit-identical to that of an uninterrupted sweep.
      executor: executor whose workers run the chunks, for example Dask's ``client.get_executor()``,
        a submitit executor or a process pool. Results are bit-identical on identical processors.
      progress: whether to show a progress bar if standard error is a terminal.

    Returns:
      A dataset with dimensions ``config``, ``seed``, ``round``, ``eval_round``, ``client`` and
      ``slot``. Its coordinates include each seed's key data and the fields in which the configs
      differ. If clients have ids from the data or a file, ``client_id`` contains them. If
      configs have different sizes, missing entries are NaN, -1 or False. Save the dataset with
      ``.to_netcdf(path)`` or ``.to_zarr(path)``.

    Raises:
      ConfigError: if an argument is invalid, or the store contains a sweep with different configs,
        data, keys, code, package versions or devices. Raised before any run starts.
      SweepInterrupted: if the sweep is interrupted, runs out of memory or fails with RuntimeError
        or FloatingPointError. Its attribute ``finished`` contains the finished runs.

    Warns:
      BrokenContract: if custom components broke their contract and ``record`` includes
        ``first_broken_round`` and ``broken_rules``.
      NotFinite: if models became non-finite and ``record`` includes ``first_nonfinite_round``.
        Each type of warning is issued at most once per sweep, after all runs.
    """
    plan, workers = planned(
        configs,
        keys,
        executor,
        data=data,
        record=record,
        memory_limit=memory_limit,
        max_batch=max_batch,
        devices=devices,
        client_batch=client_batch,
    )
    kept = None if store is None else Store.create(pathlib.Path(store), plan)
    result = execute(plan, kept, workers, progress=progress)
    contract.warn(result, [str(name) for name in result.config.values])
    return result


def planned(
    configs: SimConfig | Sequence[SimConfig] | Mapping[str, SimConfig],
    keys: Array,
    executor: Executor | None,
    *,
    devices: Sequence[jax.Device] | None = None,
    **arguments: Any,
) -> tuple[SweepPlan, Workers | None]:
    """Plan a sweep for this process, or for the workers of an executor.

    Raises:
      ConfigError: if the sweep is invalid or the first worker rejects it (see ``Workers.planned``).
    """
    plan = plan_sweep(configs, keys, devices=devices, **arguments)
    if executor is None:
        return plan, None
    if devices is not None:
        raise ConfigError("devices: must be None with an executor. Workers use their own devices.")
    workers = Workers(executor, configs, keys, arguments)
    return workers.planned(plan), workers


def execute(
    plan: SweepPlan, store: Store | None, workers: Workers | None, *, progress: bool = True
) -> xr.Dataset:
    """Run a sweep's unfinished chunks on workers or in this process, and label all results.

    Raises:
      ConfigError: if another process is running the sweep in the same store.
      SweepInterrupted: if the sweep stops early (see :func:`sweep`).
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
    except (KeyboardInterrupt, RuntimeError, FloatingPointError, MemoryError) as error:
        data, words = labelled(plan, rows)
        advice = "Set a smaller memory_limit or max_batch." if "memory" in str(error) else ""
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
    """Run chunks on the workers, and save and yield each chunk when it finishes."""
    update(description="running on workers")
    for chunk, rows in workers.run(plan, missing):
        if store is not None:
            store.save(chunk, rows)
        update(advance=plan.segments([chunk]))
        yield chunk, rows


def _progress_bar(show: bool) -> Progress:
    """Return a progress bar that is shown only if ``show`` is True and stderr is a terminal."""
    console = Console(stderr=True)
    return Progress(
        *Progress.get_default_columns(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (show and console.is_terminal),
    )
