"""What every command that simulates does: check, reserve a folder, play, write, print."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
import typer
import xarray as xr
from rich.console import Console
from rich.markup import escape

from pause_jax.analysis import events, explanations, ledger_table, result_folder, summary
from pause_jax.analysis.ledger import Ledger
from pause_jax.cli.report import write_beside
from pause_jax.config import SimConfig, validate
from pause_jax.engine import distributed
from pause_jax.engine.compilation import Compilations, use_cache
from pause_jax.engine.playing import SweepInterrupted
from pause_jax.engine.sweep import sweep
from pause_jax.struct import ConfigError


class Request(NamedTuple):
    """How configs are to be played, and where the result goes: the options of those names."""

    seeds: int
    seed: int
    target: float
    name: str | None
    out: pathlib.Path
    force: bool
    figures: bool
    max_batch: int | None = None
    report: bool = True
    log: tuple[str, ...] = ()


class Played(NamedTuple):
    """What was played, and why it stopped early, if it did; no result if none may be published."""

    result: xr.Dataset | None
    stopped: SweepInterrupted | None = None


def execute(configs: Mapping[str, SimConfig], request: Request, default_name: str) -> None:
    """Play configs, print tables, write files.

    Of several processes the first one prints and writes. If another one died, each that is left
    writes what was finished, into folders of their own.

    Args:
      configs: by label.
      request: how.
      default_name: of the result, if the user gave none.

    Raises:
      ConfigError: before any run.
      SweepInterrupted: if nothing was finished.
      typer.Exit: status 130 after an interrupt or a failure; what was finished is written.
    """
    _check(configs, request)
    name = request.name or default_name
    with _reserved(request, name) as folder:
        start = time.perf_counter()
        use_cache()
        compilations = Compilations()
        played = _play(configs, request, progress=folder is not None)
        if folder is not None and played.result is not None:
            _publish(played.result, folder, request)
            seconds = time.perf_counter() - start
            Console().print(f"{seconds:.0f} s, {compilations}.", highlight=False)
            Console().print(f"Written to {folder}/")
    if played.stopped is not None:
        _stop(played.stopped, request.out, name)


def _check(configs: Mapping[str, SimConfig], request: Request) -> None:
    """Refuse what cannot end well, before anything is computed."""
    if request.seeds < 1:
        raise ConfigError(f"--seeds {request.seeds}: must be >= 1.")
    if not 0 < request.target <= 1:
        raise ConfigError(f"--target {request.target}: must be > 0 and <= 1 (0.8 is 80 %).")
    if request.figures:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise ConfigError(
                "matplotlib is missing: pip install 'pause_jax[plot]', or use --no-figures."
            ) from None
    for kind in request.log:
        events.check(kind)
    for config in configs.values():
        validate(config)


@contextlib.contextmanager
def _reserved(request: Request, name: str) -> Iterator[pathlib.Path | None]:
    """The folder of the result, given back if it stays empty; for the first process alone."""
    if not distributed.is_first():
        yield None
        return
    explicit = request.name is not None
    folder = result_folder.reserve(request.out, name, explicit=explicit, force=request.force)
    try:
        yield folder
    finally:
        result_folder.give_back(folder)


def _play(configs: Mapping[str, SimConfig], request: Request, *, progress: bool) -> Played:
    keys = jax.random.split(jax.random.key(request.seed), request.seeds)
    try:
        return Played(sweep(configs, keys, max_batch=request.max_batch, progress=progress))
    except SweepInterrupted as error:
        return Played(error.finished if jax.process_count() == 1 else None, error)


def _publish(result: xr.Dataset, folder: pathlib.Path, request: Request) -> None:
    """Write and print all: data first, because tables can be made again and a run not."""
    result_folder.save(result, folder)
    rows, books = summary.summary(result, request.target), ledger_table.ledgers(result)
    summary.save(rows, folder / "summary.csv")
    ledger_table.save(books, folder / "ledger.csv")
    if request.figures:
        from pause_jax.analysis.plotting import save_figures

        save_figures(result, folder / "figures", request.target)
    for kind in request.log:
        events.WRITERS[kind](result, folder)
    _print(result, rows, books, request.target)
    if request.report:
        Console().print(write_beside(result, folder, request.target), highlight=False, markup=False)


def _print(
    result: xr.Dataset, rows: list[dict[str, Any]], books: dict[str, Ledger], target: float
) -> None:
    console = Console()
    sizes = result.data_size.where(result.data_size >= 0)
    if sizes.max() > 1:  # without learning every client counts as one sample
        low, high = int(sizes.min()), int(sizes.max())
        console.print(f"{result.sizes['client']} clients, {low} to {high} samples each")
    console.print(summary.table(rows, target))
    console.print(ledger_table.table(books))
    for sentence in (*ledger_table.notes(books), *explanations.explain(result, target)):
        console.print(f"- {sentence}", highlight=False, markup=False)


def _stop(error: SweepInterrupted, out: pathlib.Path, name: str) -> NoReturn:
    """End a program whose sweep stopped early."""
    if jax.process_count() > 1:
        _end_of_many(error, out, f"{name}-process{jax.process_index()}")
    if error.finished is None:
        raise error
    Console(stderr=True).print(f"[red]{escape(str(error))}[/red]", highlight=False)
    raise typer.Exit(130)


def _end_of_many(error: SweepInterrupted, out: pathlib.Path, name: str) -> NoReturn:
    """Keep what is finished, at once: soon JAX ends every process of which one has died."""
    console = Console(stderr=True)
    console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
    if error.finished is not None:
        folder = result_folder.reserve(out, name, explicit=False, force=False)
        result_folder.save_data(error.finished, folder)
        console.print(f"What was finished is in {folder}/data.nc", highlight=False)
    distributed.leave(1)
