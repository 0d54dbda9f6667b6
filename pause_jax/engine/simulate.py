"""``simulate(config, key) -> Result``: the door, and one compiled run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from pause_jax.config import SimConfig, canonical, loaded, validate
from pause_jax.engine.quantity import Quantity
from pause_jax.engine.recorder import Quantities, chosen, with_metrics
from pause_jax.engine.result import RESERVED, Result, finish
from pause_jax.engine.round import advance, init, parts
from pause_jax.learning import Dataset, Execution
from pause_jax.struct import ConfigError


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
    quantities = chosen(record, RESERVED)
    mesh = None if devices is None else Mesh(np.asarray(devices), ("client",))
    execution = Execution(check_client_batch(client_batch), mesh)
    config, data = prepare(config, data)
    check_key(key)
    if key.ndim:
        raise ConfigError(
            f"key has shape {key.shape}: simulate takes one key. For several, use "
            "sweep(config, keys), or jax.vmap over the key."
        )
    if record is None:
        quantities = with_metrics(quantities, parts(config, data).learner.metrics, RESERVED)
    return _simulate(config, data, key, quantities, execution)


# Clients from which on the memory of a state is worth a look before a run.
MANY = 10_000_000


def prepare(config: SimConfig, data: Dataset | None = None) -> tuple[SimConfig, Any]:
    """Validate a config, read its files, and make its numbers arrays: the host's part of a run.

    Raises:
      ConfigError: if the config or its data set cannot run.
    """
    validate(config)
    config = loaded(config)
    given = None if config.learning is None else config.learning.load(config.num_clients, data)
    config = canonical(config)
    if config.num_clients >= MANY and jax.default_backend() == "cpu":
        _check_memory(config, given)
    return config, given


def _check_memory(config: SimConfig, data: Any) -> None:
    """Refuse a state that is larger than the machine: the system would end the process."""
    state = jax.eval_shape(lambda: init(config, data, jax.random.key(0)))
    # Before a round and after it.
    needed = 2 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) / 2**30
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if needed > there:
        raise ConfigError(
            f"num_clients = {config.num_clients}: a round takes {needed:.0f} GiB at least, "
            f"and this machine has {there:.0f} GiB. Simulate fewer clients."
        )


def check_key(key: Array) -> None:
    """Raise ConfigError unless ``key`` is one typed key or an array of them."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ConfigError(
            f"key = {key!r}: must be a typed JAX key. Make one with jax.random.key(0)."
        )


def check_client_batch(client_batch: int | None) -> int | None:
    """The argument, if it is a number of clients or None.

    Raises:
      ConfigError: if it is not.
    """
    if client_batch is not None and not (isinstance(client_batch, int) and client_batch >= 1):
        raise ConfigError(
            f"client_batch = {client_batch!r}: must be a whole number >= 1, or None for as many as "
            "the memory allows."
        )
    return client_batch


def whole_run(
    config: SimConfig,
    data: Any,
    key: Array,
    quantities: Quantities,
    execution: Execution | None = None,
) -> Result:
    """A run from start to end, of a config and data that were prepared; pure, and not compiled."""
    state, rounds = init(config, data, key), jnp.arange(1, config.num_rounds + 1)
    state, record = advance(config, data, state, rounds, quantities, execution)
    return finish(config, state, record, quantities)


_simulate = jax.jit(whole_run, static_argnames=("quantities", "execution"))
