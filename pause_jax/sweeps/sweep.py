"""``sweep(configs, keys)``: many runs, one compilation a static structure, labelled arrays."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax import Array

from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.learning import Dataset
from pause_jax.run import contract
from pause_jax.run.record.quantity import Quantity
from pause_jax.sweeps.execute import execute
from pause_jax.sweeps.executor import Executor, Workers
from pause_jax.sweeps.plan import SweepPlan, plan_sweep
from pause_jax.sweeps.store import Store

if TYPE_CHECKING:
    import xarray as xr


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

    Configs that differ only in traced numbers or in the numbers of rounds share one compilation.
    So do the library's policies that choose equally many clients, release the same readings, and
    are not ``alone``. Runs are spread over all devices, and over the cores of a CPU.

    A row of the result is the single run ``simulate(config, key)`` up to rounding: where two
    cohorts are worth the same to a unit in the last place, the two may choose differently, and then
    go their own ways.

    Args:
      configs: one or several; a mapping names them.
      keys: typed keys [S], all different, for example
        ``jax.random.split(jax.random.key(0), S)``.
      data: a data set to use instead of the one that each config names.
      record: what to record, as in :func:`simulate`.
      memory_limit: GiB that a batch may take on a device, by a rough estimate; larger sweeps run in
        chunks.
      max_batch: runs at a time at most; from the memory limit by default. Rounded up to a multiple
        of the number of devices, or of cores if it exceeds them.
      devices: where to run; all devices by default.
      client_batch: clients of a cohort trained side by side at most, as in :func:`simulate`.
      store: a folder that keeps finished runs, and every minute a checkpoint of unfinished ones
        (not with an executor). Called again with the same arguments, also
        after a kill, it resumes there, with the bits of a sweep that was never stopped.
      executor: runs the chunks in other processes, with the same bits: one of Dask
        (``client.get_executor()``), of submitit, or a ``concurrent.futures.Executor``.
      progress: show a progress bar on the terminal's standard error.

    Returns:
      A dataset with dimensions ``config``, ``seed``, ``round``, ``eval_round``, ``client`` and
      ``slot``, with the fields in which the configs differ as coordinates of ``config``, and with
      the data of each seed's key. Where data or files name clients, ``client_id`` has their ids.
      Gaps (configs of different size) are NaN or -1. Save it with
      ``.to_netcdf(path)`` or ``.to_zarr(path)``.

    Raises:
      ConfigError: before any run, if any config or the keys cannot run, or the store is that of
        another sweep: other configs, data, keys, code, versions or devices.
      SweepInterrupted: on an interrupt or a failure; carries what was finished.

    Warns:
      BrokenContract: once, at the end, naming the configs whose custom parts broke their contract,
        if ``record`` has ``first_broken_round`` and ``broken_rules``.
      NotFinite: likewise, of models that are not finite, if it has ``first_nonfinite_round``.
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
    names = [str(name) for name in result.config.values]
    if set(contract.RECORDED) <= set(result):
        recorded = zip(*(result[name].values for name in contract.RECORDED), strict=True)
        findings = (contract.finding(*each) for each in recorded)
        contract.warn(dict(zip(names, findings, strict=True)))
    if contract.NONFINITE in result:
        rounds = result[contract.NONFINITE].values
        words = {name: contract.not_finite(each) for name, each in zip(names, rounds, strict=True)}
        contract.warn(words, contract.NotFinite)
    return result


def planned(
    configs: SimConfig | Sequence[SimConfig] | Mapping[str, SimConfig],
    keys: Array,
    executor: Executor | None,
    *,
    devices: Sequence[jax.Device] | None = None,
    **arguments: Any,
) -> tuple[SweepPlan, Workers | None]:
    """Plan a sweep: for this process, or for the workers of an executor if there is one.

    Raises:
      ConfigError: if it cannot run, or the first worker has other code or versions.
    """
    plan = plan_sweep(configs, keys, devices=devices, **arguments)
    if executor is None:
        return plan, None
    if devices is not None:
        raise ConfigError("devices: leave them out, the workers of an executor take their own.")
    workers = Workers(executor, configs, keys, arguments)
    return workers.planned(plan), workers
