"""``simulate(config, key) -> Result``: the door, and one compiled run."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from pause_jax.config import Learning, SimConfig, canonical, validate
from pause_jax.engine.result import Result, finish
from pause_jax.engine.round import advance, init
from pause_jax.learning.cohort import num_samples
from pause_jax.learning.data import Dataset
from pause_jax.struct import ConfigError


def simulate(
    config: SimConfig,
    key: Array,
    data: Dataset | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
) -> Result:
    """Simulate federated learning under a selection policy.

    Pure: the same config and key give the same result, bit for bit. May be vmapped over keys and
    over stacked configs (``pause_jax.stack``); ``sweep`` does both and labels the result.

    Args:
      config: what to simulate.
      key: a typed key, ``jax.random.key(seed)``. Two policies with the same key meet the same world
        (latencies, availability), the same partition and the same initial model.
      data: a data set to use instead of the one that the config names.
      devices: devices that share the local training of each cohort, if it is large; the
        default device by itself if left out. (``sweep`` spreads whole runs instead.)

    Returns:
      The result.

    Raises:
      ConfigError: before any work, if the config or the key cannot run.
    """
    config, data = prepare(config, data)
    check_key(key)
    if key.ndim:
        raise ConfigError(
            f"key has shape {key.shape}: simulate takes one key. For several, use "
            "sweep(config, keys), or jax.vmap over the key."
        )
    mesh = None if devices is None else Mesh(np.asarray(devices), ("client",))
    return _simulate(config, data, key, mesh)


def prepare(config: SimConfig, data: Dataset | None = None) -> tuple[SimConfig, Dataset | None]:
    """Validate a config, load its data, and make its numbers arrays: the host's part of a run.

    Raises:
      ConfigError: if the config or its data set cannot run.
    """
    validate(config)
    learning = config.learning
    if learning is None:
        return canonical(config), None
    if data is not None and not isinstance(data, Dataset):
        raise ConfigError(
            f"data = {type(data).__name__}: must be a pause_jax.learning.Dataset, or None for the "
            "data set that the config names."
        )
    data = learning.data.load() if data is None else data
    num_train = data.y_train.shape[0]
    used = learning.data.num_train
    if used is not None and used > num_train:
        raise ConfigError(
            f"learning.data.num_train = {used}: must be <= {num_train}, the training samples that "
            f"{learning.data.name} has."
        )
    learning.partition.check_samples(num_samples(learning, data), config.num_clients)
    _check_model(learning, data)
    return canonical(config), data


def check_key(key: Array) -> None:
    """Raise ConfigError unless ``key`` is one typed key or an array of them."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ConfigError(
            f"key = {key!r}: must be a typed JAX key. Make one with jax.random.key(0)."
        )


def _check_model(learning: Learning, data: Dataset) -> None:
    shape = data.x_train.shape[1:]
    module = learning.model.module(data.num_classes)
    sample = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    try:
        variables = jax.eval_shape(module.init, jax.random.key(0), sample)
    except Exception as error:
        raise ConfigError(
            f"learning.model = {learning.model.name}: cannot be applied to inputs of shape {shape} "
            f"of {learning.data.name} ({type(error).__name__}). Use the model mlp, or a data set "
            "with larger images."
        ) from error
    if any(0 in leaf.shape for leaf in jax.tree.leaves(variables)):
        raise ConfigError(
            f"learning.model = {learning.model.name}: inputs of shape {shape} of "
            f"{learning.data.name} are too small for it. Use the model mlp."
        )


@functools.partial(jax.jit, static_argnames="mesh")
def _simulate(
    config: SimConfig, data: Dataset | None, key: Array, mesh: Mesh | None = None
) -> Result:
    state = init(config, data, key)
    state, record = advance(config, data, state, jnp.arange(1, config.num_rounds + 1), mesh)
    return finish(config, state, record)
