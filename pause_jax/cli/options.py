"""What the commands that simulate share: options, the run, what is printed and written."""

from __future__ import annotations

import pathlib
import runpy
import time
from typing import Annotated, NoReturn

import jax
import typer
import xarray as xr
from rich.console import Console
from rich.markup import escape

from pause_jax import config_file
from pause_jax.analysis import privacy_report, report
from pause_jax.config import SimConfig, validate
from pause_jax.engine import distributed
from pause_jax.engine.compilation import Compilations, use_cache
from pause_jax.engine.sweep import SweepInterrupted, sweep
from pause_jax.struct import ConfigError

Seeds = Annotated[int, typer.Option(help="Independent seeds; all policies meet the same worlds.")]
Seed = Annotated[int, typer.Option(help="Number that the seeds are derived from.")]
Target = Annotated[float, typer.Option(help="Test accuracy whose simulated time is reported.")]
Name = Annotated[str | None, typer.Option(help="Name of the result; numbered if left out.")]
Out = Annotated[pathlib.Path, typer.Option(help="Folder of all results.")]
Force = Annotated[bool, typer.Option("--force", help="Write into an existing result folder.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field, e.g. reward.gamma=0."),
]
Load = Annotated[
    list[pathlib.Path] | None,
    typer.Option(
        "--load", metavar="FILE.py", help="Python file: policies, mechanisms of your own."
    ),
]
Figures = Annotated[bool, typer.Option(help="Write PNG figures (needs the extra 'plot').")]
DataDir = Annotated[str | None, typer.Option(help="Folder with prepared tensorflow-datasets data.")]


def load_files(files: list[pathlib.Path] | None) -> None:
    """Run Python files; the config classes that they define are then known by name."""
    for file in files or ():
        if not file.is_file():
            raise ConfigError(f"--load {file}: must be a Python file, and there is none.")
        try:
            runpy.run_path(str(file))
        except Exception as error:
            raise ConfigError(f"--load {file}: {type(error).__name__}: {error}.") from error


def changed(config: SimConfig, changes: list[str] | None) -> SimConfig:
    """The config with the changes of ``--set``."""
    try:
        return config_file.changed(config, changes or ())
    except ConfigError as error:
        raise ConfigError(f"--set {error}") from None


def simulate_and_report(
    configs: dict[str, SimConfig],
    *,
    seeds: int,
    seed: int,
    target: float,
    folder_name: str,
    name: str | None,
    out: pathlib.Path,
    force: bool,
    figures: bool,
    max_batch: int | None = None,
) -> None:
    """Check everything, sweep, print tables, write files.

    Of several processes the first one prints and writes. If another one died, each that is left
    writes what was finished, into folders of their own.

    Raises:
      ConfigError: before any run.
      typer.Exit: status 130 after an interrupt or a failure; what was finished is written.
    """
    console = Console()
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: must be >= 1.")
    if not 0 < target <= 1:
        raise ConfigError(f"--target {target}: must be > 0 and <= 1 (0.8 is 80 %).")
    if figures:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise ConfigError(
                "matplotlib is missing: pip install 'pause_jax[plot]', or use --no-figures."
            ) from None
    for config in configs.values():
        validate(config)
    folder = None
    if distributed.is_first():
        folder = report.reserve(out, folder_name, explicit=name is not None, force=force)
    start = time.perf_counter()
    use_cache()
    compilations = Compilations()
    interrupted: SweepInterrupted | None = None
    try:
        keys = jax.random.split(jax.random.key(seed), seeds)
        result = sweep(configs, keys, max_batch=max_batch, progress=folder is not None)
    except SweepInterrupted as error:
        if jax.process_count() > 1:
            if folder is not None:
                folder.rmdir()
            _end_of_many(error, out, f"{folder_name}-process{jax.process_index()}")
        if error.finished is None:
            raise
        result, interrupted = error.finished, error
    except ConfigError:
        if folder is not None:
            folder.rmdir()  # nothing was written yet
        raise
    if folder is not None:
        _report(console, result, folder, target, figures)
        seconds = time.perf_counter() - start
        console.print(f"{seconds:.0f} s, {compilations}.", highlight=False)
        console.print(f"Written to {folder}/")
    if interrupted is not None:
        Console(stderr=True).print(f"[red]{escape(str(interrupted))}[/red]", highlight=False)
        raise typer.Exit(130)


def _end_of_many(error: SweepInterrupted, out: pathlib.Path, name: str) -> NoReturn:
    """Keep what is finished, at once: soon JAX ends every process of which one has died."""
    console = Console(stderr=True)
    console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
    if error.finished is not None:
        folder = report.reserve(out, name, explicit=False, force=False)
        # The end may come while it is written: a file of that name is whole.
        error.finished.to_netcdf(folder / "unfinished.nc")
        (folder / "unfinished.nc").rename(folder / "data.nc")
        console.print(f"What was finished is in {folder}/data.nc", highlight=False)
    distributed.leave(1)


def _report(
    console: Console, result: xr.Dataset, folder: pathlib.Path, target: float, figures: bool
) -> None:
    report.save(result, folder, target)
    if figures:
        from pause_jax.analysis.plotting import save_figures

        save_figures(result, folder / "figures", target)
    sizes = result.data_size.where(result.data_size >= 0)
    if sizes.max() > 1:  # without learning every client counts as one sample
        low, high = int(sizes.min()), int(sizes.max())
        console.print(f"{result.sizes['client']} clients, {low} to {high} samples each")
    console.print(report.table(report.summary(result, target), target))
    books = privacy_report.ledgers(result)
    console.print(privacy_report.table(books))
    for sentence in (*privacy_report.notes(books), *report.explanations(result, target)):
        console.print(f"- {sentence}", highlight=False, markup=False)
