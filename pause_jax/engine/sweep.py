"""``sweep(configs, keys)``: many runs, one compilation a static structure, labelled arrays."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jax import Array
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pause_jax import config_file
from pause_jax.config import SimConfig, stack
from pause_jax.engine import distributed
from pause_jax.engine.arguments import (
    check_client_batch,
    check_limits,
    checked_devices,
    checked_keys,
)
from pause_jax.engine.batch import check_own_parts, lanes_of, mesh_of, plan, play, programs
from pause_jax.engine.horizon import evaluated_rounds
from pause_jax.engine.quantity import Quantity
from pause_jax.engine.recorder import Quantities, chosen, with_metrics
from pause_jax.engine.result import RESERVED, Result
from pause_jax.engine.round import parts as parts_of
from pause_jax.engine.simulate import check_size, prepare
from pause_jax.learning import DataConfig, Dataset, Execution, Given, Learning
from pause_jax.learning.dataset import checked
from pause_jax.spelling import shown
from pause_jax.struct import ConfigError, fields, is_node, nested


class SweepInterrupted(RuntimeError):  # noqa: N818, as KeyboardInterrupt
    """A sweep that stopped early.

    Attributes:
      finished: the data of the configs that were finished; if none was, the finished seeds of the
        first one; or None.
    """

    def __init__(self, message: str, finished: xr.Dataset | None):
        super().__init__(message)
        self.finished = finished


class _Job(NamedTuple):
    """One config of a sweep, checked and ready."""

    label: str
    config: SimConfig
    toml: str
    data: Any


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
    progress: bool = True,
) -> xr.Dataset:
    """Run every config with every key.

    Configs that differ only in traced numbers share one compilation and run as one batch, spread
    over all devices, and over the cores of a CPU. A row of the result is the single run
    ``simulate(config, key)`` up to rounding: where two cohorts are worth the same to a unit in the
    last place, the two may choose differently, and then go their own ways.
    In a program of several processes (``pause_jax.distributed``) each calls ``sweep`` with the same
    arguments, plays its part, and gets the whole result.

    Args:
      configs: one or several; a mapping names them.
      keys: typed keys [S], for example ``jax.random.split(jax.random.key(0), S)``.
      data: a data set to use instead of the one that each config names.
      record: what to record, as in :func:`simulate`.
      memory_limit: GiB that a batch may take on a device, by a rough estimate; larger sweeps run in
        chunks.
      max_batch: runs at a time at most; from the memory limit by default. Rounded up to a multiple
        of the number of devices, or of cores if it exceeds them.
      devices: where to run; all devices of all processes by default.
      client_batch: clients of a cohort trained side by side at most, as in :func:`simulate`.
      progress: show a progress bar on the terminal's standard error.

    Returns:
      A dataset with dimensions ``config``, ``seed``, ``round``, ``eval_round``, ``client`` and
      ``slot``, and with the fields in which the configs differ as coordinates of ``config``. Gaps
      (configs of different size) are NaN or -1. Save it with ``.to_netcdf(path)`` or
      ``.to_zarr(path)``.

    Raises:
      ConfigError: before any run, if any config or the keys cannot run.
      SweepInterrupted: on an interrupt or a failure; carries what was finished.
    """
    named, keys = _named(configs), checked_keys(keys)
    check_limits(memory_limit, max_batch)
    devices = checked_devices(devices)
    quantities = chosen(record, RESERVED)
    execution = Execution(check_client_batch(client_batch))
    data = None if data is None else checked(data)
    once: dict[DataConfig, Any] = {}
    jobs = [_job(label, config, data, once) for label, config in named.items()]
    groups: dict[Any, list[_Job]] = {}
    for job in jobs:
        groups.setdefault((jax.tree.structure(job.config), id(job.data)), []).append(job)
    if record is None:
        of_all = (parts_of(g[0].config, g[0].data).learner.metrics for g in groups.values())
        quantities = with_metrics(quantities, itertools.chain(*of_all), RESERVED)
    for group in groups.values():
        check_size(group[0].config, group[0].data, quantities, len(group) * len(keys))
        check_own_parts(group[0].config, group[0].data, quantities)
    if jax.process_count() > 1:
        seeds = jax.random.key_data(keys).tolist()
        texts = {job.label: job.toml for job in jobs}
        names = [q.name for q in quantities]
        command = (_versions(), texts, seeds, names, client_batch, memory_limit, max_batch)
        distributed.check_same(repr(command))

    mesh = mesh_of(devices)
    step = programs(mesh, quantities, execution)
    plans = [
        plan(
            *(group[0].config, group[0].data, len(group) * len(keys), mesh.size, lanes_of(mesh)),
            *(quantities, execution, memory_limit, max_batch),
        )
        for group in groups.values()
    ]
    done: dict[str, xr.Dataset] = {}
    with _progress(progress) as bar:
        task = bar.add_task("", total=sum(cut.steps for cut in plans))
        for group, cut in zip(groups.values(), plans, strict=True):
            labels = ", ".join(job.label for job in group)
            bar.update(task, description=labels if len(labels) < 40 else f"{labels[:37]}...")
            configs, parts = stack([job.config for job in group]), list[Result]()
            runs = play(configs, group[0].data, keys, cut, step, mesh, lambda: bar.advance(task))
            try:
                for part in runs:  # one by one: what came before a failure is kept
                    parts.append(part)
            except (KeyboardInterrupt, RuntimeError) as error:
                done |= _label(group, parts, quantities, len(keys))
                raise _interrupted(jobs, done, quantities, len(keys), error) from error
            done |= _label(group, parts, quantities, len(keys))
    return _join(jobs, done, quantities)


def _job(label: str, config: SimConfig, data: Dataset | None, once: dict[DataConfig, Any]) -> _Job:
    """One config, prepared; ``once`` holds what was loaded, so that equal data are one object, and
    configs of equal structure one group.
    """
    learning = config.learning if isinstance(config, SimConfig) else None
    if data is None and type(learning) is Learning and learning.data in once:
        config, loaded = prepare(config, once[learning.data])
    else:
        config, loaded = prepare(config, data)
        if type(learning) is Learning:
            once[learning.data] = loaded
    if data is not None and config.learning is not None:
        told = Given(num_train=config.learning.data.num_train, digest=loaded.digest)
        config = config.override({"learning.data": told})
    return _Job(label, config, config_file.dumps(config), loaded)


def _versions() -> dict[str, str]:
    return {package: metadata.version(package) for package in ("pause_jax", "jax")}


def _interrupted(
    jobs: list[_Job],
    done: dict[str, xr.Dataset],
    quantities: Quantities,
    num_seeds: int,
    error: BaseException,
) -> SweepInterrupted:
    whole = [
        job for job in jobs if job.label in done and done[job.label].sizes["seed"] == num_seeds
    ]
    kept = whole or [job for job in jobs if job.label in done]
    runs = sum(dataset.sizes["seed"] for dataset in done.values())
    return SweepInterrupted(
        f"stopped after {runs} of {len(jobs) * num_seeds} runs, {len(whole)} of {len(jobs)} "
        f"configs ({type(error).__name__}: {error or 'interrupt'}). "
        + ("Take a smaller memory_limit or max_batch." if "memory" in str(error) else ""),
        _join(kept, done, quantities) if kept else None,
    )


def _named(
    configs: SimConfig | Sequence[SimConfig] | Mapping[str, SimConfig],
) -> dict[str, SimConfig]:
    if isinstance(configs, SimConfig):
        configs = [configs]
    if not isinstance(configs, Mapping | Iterable):
        raise ConfigError(f"configs = {shown(configs)}: must be a SimConfig or several.")
    if not isinstance(configs, Mapping):
        configs = list(configs)
        width = len(str(max(len(configs) - 1, 0)))
        configs = {f"{i:0{width}}": config for i, config in enumerate(configs)}
    if not configs:
        raise ConfigError("configs is empty: give at least one SimConfig.")
    for label in configs:
        if not isinstance(label, str):
            raise ConfigError(f"configs: the name {shown(label)} must be a text.")
    return dict(configs)


@contextlib.contextmanager
def _progress(show: bool) -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    disable = not (show and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        yield bar


def _label(
    group: list[_Job], parts: list[Result], quantities: Quantities, num_seeds: int
) -> dict[str, xr.Dataset]:
    """The finished rows of each config as a dataset with dimension seed."""
    if not parts:
        return {}
    result = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    datasets: dict[str, xr.Dataset] = {}
    for i, job in enumerate(group):
        rows = slice(i * num_seeds, (i + 1) * num_seeds)
        num_finished = len(result.eval_rounds[rows])
        if num_finished == 0:
            break
        coords = {
            "seed": np.arange(num_finished),
            "round": np.arange(1, job.config.num_rounds + 1),
            "eval_round": evaluated_rounds(job.config),
            "client": np.arange(job.config.num_clients),
            "slot": np.arange(job.config.cohort_size),
        }
        datasets[job.label] = xr.Dataset(
            {q.name: (("seed", *q.dims), result.values[q.name][rows]) for q in quantities},
            coords={
                **coords,
                "epsilon_unit": result.epsilon_unit,
                "num_parameters": result.num_parameters,
                "unnoised": ", ".join(result.unnoised),
                "config_toml": job.toml,
            },
        )
    return datasets


def _join(jobs: list[_Job], done: dict[str, xr.Dataset], quantities: Quantities) -> xr.Dataset:
    """One dataset with dimension config, gaps filled."""
    whole = xr.concat(
        [done[job.label] for job in jobs],
        dim=xr.Variable("config", [job.label for job in jobs]),
        join="outer",
        fill_value={q.name: q.gap for q in quantities},
        data_vars="all",
        coords="different",
        compat="equals",
    )
    differing = _differing([job.config for job in jobs])
    whole = whole.assign_coords({name: ("config", values) for name, values in differing.items()})
    for name in ("epsilon_unit", "num_parameters", "unnoised", "config_toml"):
        if whole[name].ndim == 0:
            whole = whole.assign_coords({name: ("config", [whole[name].item()] * len(jobs))})
    for q in quantities:
        whole[q.name].attrs.update({"units": q.unit} if q.unit else {}, description=q.doc)
    whole.attrs.update(_versions())
    return whole


def _differing(configs: list[SimConfig]) -> dict[str, list[Any]]:
    """The fields in which configs differ, by dotted path: a column with a value for each config."""
    flat = [dict(_leaves(config)) for config in configs]
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


def _column(values: list[Any]) -> list[Any]:
    """Values of one field in several configs, None where one has no such field, as one kind: floats
    (the shortest decimals that are the same float32), else text.
    """
    if all(isinstance(v, (int, float, jax.Array, np.ndarray)) or v is None for v in values):
        return [np.nan if v is None else float(str(np.float32(v))) for v in values]
    return ["" if v is None else str(v) for v in values]
