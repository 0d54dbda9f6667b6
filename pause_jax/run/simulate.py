"""Entry point for a single run, ``simulate(config, key) -> Result``."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from pause_jax.base.memory import refused_if_too_large
from pause_jax.base.registry import label
from pause_jax.config import SimConfig
from pause_jax.learning import Dataset
from pause_jax.run import contract
from pause_jax.run.driver import is_traced, single_run
from pause_jax.run.preflight import (
    FEWER,
    check_one_key,
    check_size,
    checked_devices,
    client_ids,
    execution_of,
    prepare,
)
from pause_jax.run.record.quantity import Quantity
from pause_jax.run.record.result import Result, check_client_scores, chosen, with_metrics
from pause_jax.run.setup import learner_of


def simulate(
    config: SimConfig,
    key: Array,
    data: Dataset | None = None,
    *,
    record: Sequence[str | Quantity] | None = None,
    devices: Sequence[jax.Device] | None = None,
    client_batch: int | None = None,
) -> Result:
    """Simulate federated learning under a selection policy.

    The same config, key and data produce bit-identical results on the same device. The function can
    be vmapped over keys and over stacked configs (``pause_jax.stack``). ``sweep`` runs a grid of
    configs and labels the results. Matrix products use float32, except in local training, which
    uses ``jax.default_matmul_precision`` (default: the device's, e.g. TF32 on recent GPUs).

    Args:
      config: configuration of the simulation.
      key: typed key, such as ``jax.random.key(seed)``. Runs with the same key share latencies,
        availability, the data partition and the initial model, regardless of the policy.
      data: data set to use instead of the config's data set.
      record: names of quantities to record, or custom ``Quantity`` objects. ``(*QUANTITIES, mine)``
        adds a custom quantity. The default is all of ``QUANTITIES``, the learner's metrics and, if
        rounds overlap, ``STEP_QUANTITIES``. Client metrics such as ``client_accuracy`` require
        ``learning.holdout``. Only the simulator knows these metrics; clients never send them.
      devices: devices over which the local training of a large cohort is distributed (default:
        JAX's default device). ``sweep`` distributes whole runs instead.
      client_batch: maximum number of clients that train in parallel on a device (1: one at a time).
        The default depends on the memory per client. The value affects only rounding errors.

    Returns:
      Result with the recorded quantities and the final model.

    Raises:
      ConfigError: if an argument is invalid (raised before any work starts), or if memory runs out.

    Warns:
      BrokenContract: if a custom component broke its contract and ``record`` includes
        ``first_broken_round`` and ``broken_rules``.
      NotFinite: if the model became non-finite and ``record`` includes ``first_nonfinite_round``.
        Traced calls, e.g. under ``jax.vmap``, issue neither ``BrokenContract`` nor ``NotFinite``.

    Examples:
      >>> import jax
      >>> from pause_jax import SimConfig, simulate
      >>> config = SimConfig(num_clients=8, num_selected=2, num_rounds=50, learning=None)
      >>> result = simulate(config, jax.random.key(0))
      >>> result.clients.shape, int(result.counts.sum())
      ((50, 2), 100)
      >>> many = jax.vmap(lambda key: simulate(config, key))(jax.random.split(jax.random.key(0), 3))
      >>> many.clock.shape
      (3, 50)
    """
    quantities = chosen(record)
    mesh = None if devices is None else Mesh(np.asarray(checked_devices(devices)), ("client",))
    execution = execution_of(client_batch, mesh)
    fix = "For several keys, use sweep(config, keys), or vmap over the keys."
    check_one_key(key, "simulate", fix)
    config, loaded_data = prepare(config, data)
    learner = learner_of(config, loaded_data)
    if record is None:
        quantities = with_metrics(quantities, learner.metrics, [config])
    check_client_scores(quantities, [learner])
    check_size(config, loaded_data, quantities)
    ids = client_ids(config, loaded_data)
    with refused_if_too_large(f"num_clients = {config.num_clients}", FEWER):
        result = single_run(config, loaded_data, key, quantities, execution)
    if not is_traced(result.values):
        contract.warn(result.values, [label(config.policy)])
    return result.replace(client_ids=ids)
