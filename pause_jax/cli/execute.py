"""Execution of the simulation commands, from validation to the printed tables."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pathlib
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import typer
from rich.console import Console
from rich.markup import escape

from pause_jax.base.compilation import use_cache
from pause_jax.base.registry import require
from pause_jax.base.struct import ConfigError
from pause_jax.cli import result_folder
from pause_jax.cli.options import Request
from pause_jax.cli.output import print_error, status_of, stoppable
from pause_jax.cli.result_folder import UNFINISHED
from pause_jax.config import SimConfig
from pause_jax.sweeps.estimate import estimate
from pause_jax.sweeps.execute import SweepInterrupted, planned
from pause_jax.sweeps.execute import execute as run_sweep
from pause_jax.sweeps.executor import Executor
from pause_jax.sweeps.plan import SweepPlan
from pause_jax.sweeps.provenance import fingerprint, versions
from pause_jax.sweeps.store import Store, compare_store, discard_store, store_is_empty

if TYPE_CHECKING:
    import xarray as xr


def execute(configs: Mapping[str, SimConfig], request: Request, default_name: str) -> None:
    """Run validated configs, write the result files and print the tables.

    Finished runs are stored in the result folder or in ``--store``. ``--resume`` reuses these runs.

    Raises:
      ConfigError: if an option is invalid. This error is raised before any run starts.
      typer.Exit: if a signal stops the program (status 130 for Ctrl-C, 143 for SIGTERM, 129 for
        SIGHUP), or if a run or a write fails (status 1). Finished runs are kept.
    """
    from pause_jax.cli.publish import publish, show_again  # pandas takes a second to import

    _check_output(request)
    name = default_name if request.name is None else request.name
    result_folder.check_name(name)
    with _executor(request.dask) as executor, stoppable():
        use_cache()
        start = time.perf_counter()
        keys = jax.random.split(jax.random.key(request.seed), request.seeds)
        plan, workers = planned(
            configs, keys, executor, max_batch=request.max_batch, per_client=request.per_client
        )
        if request.dry_run:
            typer.echo(estimate(plan))
            return
        with _reserved(request, name, plan) as folder:
            if request.resume and _is_finished(folder, plan):
                Console(stderr=True).print(f"{folder} is finished. Nothing left to run.")
                show_again(folder, request.target)
                return
            # With --store, an empty store in ``folder`` marks the run as unfinished.
            store = Store.create(folder / UNFINISHED, plan)
            if request.store is not None:
                store = Store.create(request.store, plan)
            stopped: SweepInterrupted | None = None
            result: xr.Dataset | None
            try:
                result = run_sweep(plan, store, workers)
            except SweepInterrupted as error:
                stopped = error
                result = error.finished
            if result is not None:
                about = {**described(request.seed), "seeds": request.seeds}
                result = result.assign_attrs(about)
                about |= {name: result.attrs[name] for name in ("interrupted", "made_by")}
                about["versions"] = versions()
                failure = publish(result, folder, about, request)
                if failure is not None:
                    _end_unwritten(failure, folder, store)
                Console().print(f"{time.perf_counter() - start:.0f} s.", highlight=False)
                Console().print(f"Written to {folder}/")
            if stopped is None:
                discard_store(folder / UNFINISHED)
    if stopped is not None:
        resumable = store.folder.is_dir()
        resume = "Run the same command with --resume to continue."
        end(stopped, resume if resumable else "Run the same command again to start over.")


def _check_output(request: Request) -> None:
    if not 0 < request.target <= 1:
        raise ConfigError(f"--target {request.target}: must be > 0 and <= 1 (0.8 means 80 %).")
    if request.figures and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--figures requires matplotlib. Run pip install 'pause_jax[plot]', or use --no-figures."
        )


def described(seed: int) -> dict[str, Any]:
    """Return the command line and the seed as result attributes."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return {"command": shlex.join(["pause-jax", *words]), "seed": seed}


@contextlib.contextmanager
def _executor(text: str | None) -> Iterator[Executor | None]:
    """Yield an executor for a scheduler (``local:N``, address or file), or None if text is None."""
    if text is None:
        yield None
        return
    distributed = require("distributed", "cluster", "--dask")
    logging.getLogger("distributed").setLevel(logging.WARNING)
    where: dict[str, Any] = {"address": text}
    if local := re.fullmatch(r"local:([1-9]\d*)", text):
        workers = int(local[1])
        threads = max(1, (os.cpu_count() or 1) // workers)
        where = {"n_workers": workers, "threads_per_worker": threads}
        where |= {"dashboard_address": "127.0.0.1:0"}
    elif pathlib.Path(text).is_file():
        where = {"scheduler_file": text}
    elif not re.search(r":\d+$", text):
        raise ConfigError(f"--dask {text}: must be local:N, HOST:PORT or a scheduler file.")
    try:
        # Do not make this the default client, because xarray would use it to lock files.
        client = distributed.Client(**where, timeout=20, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--dask {text}: cannot connect to the scheduler ({error}).") from None
    with client:
        yield client.get_executor()


@contextlib.contextmanager
def _reserved(request: Request, name: str, plan: SweepPlan) -> Iterator[pathlib.Path]:
    """Yield the result folder, and remove it afterwards if it is empty."""
    folder = _resumable_folder(request, name, plan) if request.resume else None
    if folder is None:
        explicit = request.name is not None
        folder = result_folder.reserve(request.out, name, explicit=explicit)
    else:
        result_folder.check_links(folder)
    try:
        yield folder
    finally:
        if store_is_empty(folder / UNFINISHED):
            discard_store(folder / UNFINISHED)
        result_folder.give_back(folder)


def _resumable_folder(request: Request, name: str, plan: SweepPlan) -> pathlib.Path | None:
    """Return the folder of an earlier run of the same command (finished or not), or None."""
    other = ""
    explicit = request.name is not None
    for folder in result_folder.existing(request.out, name, explicit=explicit):
        if (folder / UNFINISHED).is_dir():
            words, _ = compare_store(folder / UNFINISHED, plan)
            if not words:
                return folder
            other = other or f"{folder} contains a different run ({'; '.join(words[:3])})"
        elif result_folder.about(folder).get("made_by") == fingerprint(plan.made_by):
            return folder
    if other:
        raise ConfigError(f"--resume: {other}. Undo the changes, or start over without --resume.")
    if request.store is None or not request.store.is_dir():
        typer.echo(
            "--resume: found no unfinished run of this command. Starting a new run.", err=True
        )
    return None


def _is_finished(folder: pathlib.Path, plan: SweepPlan) -> bool:
    about = result_folder.about(folder)
    same = about.get("made_by") == fingerprint(plan.made_by)
    return same and about.get("interrupted") == "no" and not (folder / UNFINISHED).is_dir()


def _end_unwritten(error: OSError, folder: pathlib.Path, store: Store) -> NoReturn:
    """Exit after a failed write, with advice on how to save the result."""
    advice = "Finished runs are stored. Free some space, and use --resume to write the result."
    if store.failed:
        advice = "Free some space, and use --resume to repeat unsaved runs and write the result."
    why = error.strerror or str(error)
    print_error(f"{folder}: cannot write the result ({why}). {advice}")
    raise typer.Exit(1)


def end(error: SweepInterrupted, advice: str = "") -> NoReturn:
    """Print the error and ``advice``, and exit with the status for the error's cause."""
    Console(stderr=True).print(f"[red]{escape(str(error))}[/red] {advice}", highlight=False)
    raise typer.Exit(status_of(error.__cause__))
