"""``simulate(config, key) -> Result``."""

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
from pause_jax.run.record.result import Result, chosen, with_metrics
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

    Pure: the same config and key give the same result, bit for bit. May be vmapped over keys and
    over stacked configs (``pause_jax.stack``); ``sweep`` does both and labels the result.
    Products in the clients' training have the precision of ``jax.default_matmul_precision``, by
    default the device's own (TF32 on recent GPUs); all other products have that of float32.

    Args:
      config: what to simulate.
      key: a typed key, ``jax.random.key(seed)``. Two policies with the same key meet the same world
        (latencies, availability), the same partition and the same initial model.
      data: a data set to use instead of the one that the config names.
      record: what to record, by name or as a ``Quantity`` of one's own: ``(*QUANTITIES, mine)``
        adds one, ``("clock", "test_accuracy")`` drops the others. By default all of ``QUANTITIES``,
        and every metric of the learner.
      devices: devices that share the local training of each cohort, if it is large; the
        default device by itself if left out. (``sweep`` spreads whole runs instead.)
      client_batch: clients trained side by side at most; 1 trains one after another. By default as
        many as the memory of one allows. Results are equal up to rounding.

    Returns:
      The result.

    Raises:
      ConfigError: before any work, if the config, the key or another argument cannot run.

    Warns:
      BrokenContract: once, at the end, if a custom part broke its contract and ``record`` has
        ``first_broken_round`` and ``broken_rules``; not within a trace.
      NotFinite: likewise, if the model has weights that are not finite and ``record`` has
        ``first_nonfinite_round``.

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
    check_one_key(key, "simulate", "For several, use sweep(config, keys), or vmap over the key.")
    config, loaded_data = prepare(config, data)
    if record is None:
        metrics = learner_of(config, loaded_data).metrics
        quantities = with_metrics(quantities, metrics, [config])
    check_size(config, loaded_data, quantities)
    ids = client_ids(config, loaded_data)
    with refused_if_too_large(f"num_clients = {config.num_clients}", FEWER):
        result = single_run(config, loaded_data, key, quantities, execution)
    if not is_traced(result.values):
        name = label(config.policy)
        if set(contract.RECORDED) <= set(result.values):
            found = contract.finding(*(result.values[each] for each in contract.RECORDED))
            contract.warn({name: found})
        if contract.NONFINITE in result.values:
            words = contract.not_finite(result.values[contract.NONFINITE])
            contract.warn({name: words}, contract.NotFinite)
    return result.replace(client_ids=ids)
