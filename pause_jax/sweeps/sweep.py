"""``sweep(configs, keys)``: labelled results of many runs, one compilation per structure."""

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

    Configs that differ only in traced numbers or, without custom parts, in the number of rounds
    share one compilation. So do built-in policies that choose the same number of clients, release
    the same readings, and are not ``alone``. Runs are spread over all devices and CPU cores.

    Each row of the result equals the single run ``simulate(config, key)`` up to rounding. If two
    cohorts' values differ only by rounding, the two runs may choose different ones and diverge.

    Args:
      configs: one config or several; a mapping names them.
      keys: distinct typed keys [S], for example ``jax.random.split(jax.random.key(0), S)``.
      data: data set that replaces the one named by each config.
      record: quantities to record, as in :func:`simulate`.
      memory_limit: maximum GiB of a batch on each device (estimate); larger sweeps run in chunks.
      max_batch: maximum number of runs at a time; by default, what fits in the memory limit.
        Rounded up to a multiple of the number of devices, or of cores if it exceeds them.
      devices: devices to run on; all by default.
      client_batch: maximum number of clients trained side by side, as in :func:`simulate`.
      store: folder that keeps finished runs and, without an executor, a checkpoint of unfinished
        runs every minute. A call with the same arguments resumes there, even after a kill, and
        returns the same bits as an uninterrupted sweep.
      executor: executor that runs the chunks in other processes, with the same bits: Dask
        (``client.get_executor()``), submitit, or a ``concurrent.futures.Executor``.
      progress: show a progress bar on the terminal's standard error.

    Returns:
      A dataset with dimensions ``config``, ``seed``, ``round``, ``eval_round``, ``client`` and
      ``slot``. Its coordinates contain the fields in which the configs differ and the data of each
      seed's key. If data or files name clients, ``client_id`` contains their ids. Gaps between
      configs of different size are NaN, -1 or False. Save it with ``.to_netcdf(path)`` or
      ``.to_zarr(path)``.

    Raises:
      ConfigError: if a config or the keys are invalid, or the store holds a different sweep (in its
        configs, data, keys, code, versions or devices), before any run starts.
      SweepInterrupted: if the sweep is interrupted or fails. It contains the finished runs.

    Warns:
      BrokenContract: if custom parts broke their contract and ``record`` contains
        ``first_broken_round`` and ``broken_rules``. Issued once, at the end, naming the configs.
      NotFinite: if models became non-finite and ``record`` contains ``first_nonfinite_round``.
        Issued like ``BrokenContract``.
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
    """Plan a sweep for this process, or for the workers of an executor.

    Raises:
      ConfigError: if the sweep is invalid, or the first worker has different code or versions.
    """
    plan = plan_sweep(configs, keys, devices=devices, **arguments)
    if executor is None:
        return plan, None
    if devices is not None:
        raise ConfigError("devices: leave them out, the workers of an executor take their own.")
    workers = Workers(executor, configs, keys, arguments)
    return workers.planned(plan), workers
