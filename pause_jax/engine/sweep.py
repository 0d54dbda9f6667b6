"""``sweep(configs, keys)``: many runs, one compilation a static structure, labelled arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax import Array
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import pause_jax
from pause_jax import config_file
from pause_jax.config import SimConfig, stack
from pause_jax.engine import distributed
from pause_jax.engine.batch import check_own_policy, lanes_of, mesh_of, plan, play
from pause_jax.engine.result import Result
from pause_jax.engine.simulate import check_key, prepare
from pause_jax.learning.data import Dataset
from pause_jax.struct import ConfigError, fields, is_node, nested

# Variables of the result: their dimensions after (config, seed), and what fills a gap where configs
# differ in rounds, clients or slots.
_VARIABLES: dict[str, tuple[tuple[str, ...], float]] = {
    "clients": (("round", "slot"), -1),
    "latency": (("round",), np.nan),
    "query_seconds": (("round",), np.nan),
    "clock": (("round",), np.nan),
    "max_spent": (("round",), np.nan),
    "spent": (("client",), np.nan),
    "counts": (("client",), -1),
    "queried": (("client",), -1),
    "data_size": (("client",), -1),
    "energy": (("round",), np.nan),
    "reward": (("round",), np.nan),
    "genie_reward": (("round",), np.nan),
    "regret": (("round",), np.nan),
    "optimality_gap": (("round",), np.nan),
    "acceptance_rate": (("round",), np.nan),
    "train_loss": (("round",), np.nan),
    "test_loss": (("eval_round",), np.nan),
    "test_accuracy": (("eval_round",), np.nan),
    "first_nonfinite_round": ((), -1),
}
_UNITS = {
    "latency": "s",
    "query_seconds": "s",
    "clock": "s",
    "eval_clock": "s",
    "test_accuracy": "1",
}


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
    label: str
    config: SimConfig
    data: Dataset | None


def sweep(
    configs: SimConfig | Sequence[SimConfig] | Mapping[str, SimConfig],
    keys: Array,
    *,
    data: Dataset | None = None,
    memory_limit: float = 2.0,
    max_batch: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Run every config with every key.

    Configs that differ only in traced numbers share one compilation and run as one batch; a row of
    the result equals the single run ``simulate(config, key)``. A batch is spread over all devices,
    and over the cores of a CPU.
    In a program of several processes (``pause_jax.distributed``) each calls ``sweep`` with the same
    arguments, plays its part, and gets the whole result.

    Args:
      configs: one or several; a mapping names them.
      keys: typed keys [S], for example ``jax.random.split(jax.random.key(0), S)``.
      data: a data set to use instead of the one that each config names.
      memory_limit: GiB that a batch may take on a device, by a rough estimate; larger sweeps run in
        chunks.
      max_batch: runs at a time at most; from the memory limit by default. Rounded up to a multiple
        of the number of devices, or of cores if it exceeds them.
      devices: where to run; all devices of all processes by default.
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
    named = _named(configs)
    check_key(keys)
    if max_batch is not None and max_batch < 1:
        raise ConfigError(f"max_batch = {max_batch}: must be >= 1, or None for as many as fit.")
    if not memory_limit > 0:
        raise ConfigError(f"memory_limit = {memory_limit}: must be > 0, in GiB.")
    keys = jnp.atleast_1d(keys)
    jobs = [_Job(label, *prepare(config, data)) for label, config in named.items()]
    groups: dict[Any, list[_Job]] = {}
    for job in jobs:
        groups.setdefault((jax.tree.structure(job.config), id(job.data)), []).append(job)

    if jax.process_count() > 1:
        seeds = jax.random.key_data(keys).tolist()
        versions = (pause_jax.__version__, jax.__version__)
        texts = {job.label: config_file.dumps(job.config) for job in jobs}
        distributed.check_same(repr((versions, texts, seeds, memory_limit, max_batch)))
    mesh = mesh_of(jax.devices() if devices is None else devices)
    for group in groups.values():
        check_own_policy(group[0].config, group[0].data)
    plans = [
        plan(
            group[0].config,
            group[0].data,
            len(group) * len(keys),
            mesh.size,
            lanes_of(mesh),
            memory_limit,
            max_batch,
        )
        for group in groups.values()
    ]
    done: dict[str, xr.Dataset] = {}
    with _progress(progress) as bar:
        task = bar.add_task("", total=sum(cut.steps for cut in plans))
        for group, cut in zip(groups.values(), plans, strict=True):
            labels = ", ".join(job.label for job in group)
            bar.update(task, description=labels if len(labels) < 40 else f"{labels[:37]}...")
            parts: list[Result] = []
            configs = stack([job.config for job in group])
            try:
                for part in play(
                    configs, group[0].data, keys, cut, mesh, lambda: bar.advance(task)
                ):
                    parts.append(part)
            except (KeyboardInterrupt, RuntimeError) as error:
                done |= _label(group, parts, len(keys))
                raise _interrupted(jobs, done, len(keys), error) from error
            done |= _label(group, parts, len(keys))
    return _join(jobs, done)


def _interrupted(
    jobs: list[_Job], done: dict[str, xr.Dataset], num_seeds: int, error: BaseException
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
        _join(kept, done) if kept else None,
    )


def _named(
    configs: SimConfig | Sequence[SimConfig] | Mapping[str, SimConfig],
) -> dict[str, SimConfig]:
    if isinstance(configs, SimConfig):
        configs = [configs]
    if not isinstance(configs, Mapping):
        width = len(str(max(len(configs) - 1, 0)))
        configs = {f"{i:0{width}}": config for i, config in enumerate(configs)}
    if not configs:
        raise ConfigError("configs is empty: give at least one SimConfig.")
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


def _label(group: list[_Job], parts: list[Result], num_seeds: int) -> dict[str, xr.Dataset]:
    """The finished rows of each config as a dataset with dimension seed."""
    datasets: dict[str, xr.Dataset] = {}
    if not parts:
        return datasets
    result = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    for i, job in enumerate(group):
        rows = slice(i * num_seeds, (i + 1) * num_seeds)
        if len(result.counts[rows]) == 0:
            break
        arrays = {
            name: (("seed", *dims), getattr(result, name)[rows])
            for name, (dims, _) in _VARIABLES.items()
        }
        eval_rounds = result.eval_rounds[rows][0]
        clock = result.clock[rows][:, eval_rounds - 1]
        datasets[job.label] = xr.Dataset(
            {**arrays, "eval_clock": (("seed", "eval_round"), clock)},
            coords={
                "seed": np.arange(len(result.counts[rows])),
                "round": np.arange(1, job.config.num_rounds + 1),
                "eval_round": eval_rounds,
                "client": np.arange(job.config.num_clients),
                "slot": np.arange(job.config.cohort_size),
                "epsilon_unit": result.epsilon_unit,
                "num_parameters": result.num_parameters,
                "unnoised": ", ".join(result.unnoised),
                "config_toml": config_file.dumps(job.config),
            },
        )
    return datasets


def _join(jobs: list[_Job], done: dict[str, xr.Dataset]) -> xr.Dataset:
    """One dataset with dimension config, gaps filled."""
    fill = {name: value for name, (_, value) in _VARIABLES.items()} | {"eval_clock": np.nan}
    whole = xr.concat(
        [done[job.label] for job in jobs],
        dim=xr.Variable("config", [job.label for job in jobs]),
        join="outer",
        fill_value=fill,
        data_vars="all",
        coords="different",
        compat="equals",
    )
    whole = whole.assign_coords(
        {name: ("config", values) for name, values in _differing(jobs).items()}
    )
    for name in ("epsilon_unit", "num_parameters", "unnoised", "config_toml"):
        if whole[name].ndim == 0:
            whole = whole.assign_coords({name: ("config", [whole[name].item()] * len(jobs))})
    for name, unit in _UNITS.items():
        whole[name].attrs["units"] = unit
    whole.attrs.update(pause_jax=pause_jax.__version__, jax=jax.__version__)
    return whole


def _differing(jobs: list[_Job]) -> dict[str, list[Any]]:
    """Fields in which the configs differ, by dotted path; text where the kinds differ."""
    flat: list[dict[str, Any]] = []
    for job in jobs:
        values: dict[str, Any] = {}
        for path, part in nested(job.config):
            if path and part.name:
                values[path] = part.name
            for name, value, _, field in fields(part):
                if not is_node(field):
                    where = f"{path}.{name}" if path else name
                    values[where] = value
        flat.append(values)
    paths = dict.fromkeys(path for values in flat for path in values)
    columns: dict[str, list[Any]] = {}
    for path in paths:
        column = [values.get(path) for values in flat]
        if all(isinstance(v, (int, float, jax.Array, np.ndarray)) or v is None for v in column):
            column = [np.nan if v is None else float(str(np.float32(v))) for v in column]
        else:
            column = ["" if v is None else str(v) for v in column]
        if len(set(map(str, column))) > 1:
            columns[path] = column
    return columns
