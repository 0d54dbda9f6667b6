"""What ``simulate`` and ``sweep`` take beside configs, checked on entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.learning import Execution


def check_key(key: Array) -> None:
    """Raise ConfigError unless ``key`` is one typed key or an array of them."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ConfigError(
            f"key = {shown(key)}: must be a typed JAX key. Make one with jax.random.key(0)."
        )


def check_one_key(key: Array, taker: str, fix: str) -> None:
    """Raise ConfigError unless ``key`` is one typed key.

    Args:
      key: the argument.
      taker: what takes it, for the message.
      fix: what to do with several.

    Raises:
      ConfigError: if it is something else, or several.
    """
    check_key(key)
    if key.ndim:
        raise ConfigError(f"key has shape {key.shape}: {taker} takes one key. {fix}")


def checked_keys(keys: Array) -> Array:
    """Typed keys [S], of one or several.

    Raises:
      ConfigError: if they are something else, or none, or two of them are equal.
    """
    check_key(keys)
    keys = keys if keys.ndim else keys[None]
    if keys.ndim > 1 or not keys.size:
        raise ConfigError(
            f"keys has shape {keys.shape}: must be keys [S], S >= 1. Make them with "
            "jax.random.split(jax.random.key(0), S)."
        )
    first: dict[bytes, int] = {}
    for place, words in enumerate(np.asarray(jax.random.key_data(keys))):
        before = first.setdefault(words.tobytes(), place)
        if before != place:
            raise ConfigError(
                f"keys[{place}] equals keys[{before}]: keys must differ, as equal runs make errors "
                "look small. Make them with jax.random.split(jax.random.key(0), S)."
            )
    return keys


def checked_devices(devices: Sequence[jax.Device] | None) -> list[jax.Device]:
    """The devices as a list; all of all processes if None.

    Raises:
      ConfigError: if they are something else, none, or one of them twice.
    """
    if devices is None:
        return jax.devices()
    found = list(devices) if hasattr(devices, "__iter__") else []
    if not found or len(set(found)) < len(found) or not all(map(_is_device, found)):
        raise ConfigError(
            f"devices = {shown(devices)}: must be a list of JAX devices, each once, such as "
            "jax.devices()[:1]; leave it out for the default."
        )
    return found


def _is_device(device: Any) -> bool:
    return isinstance(device, jax.Device)


def check_client_batch(client_batch: int | None) -> int | None:
    """The argument, if it is a number of clients or None.

    Raises:
      ConfigError: if it is not.
    """
    if not (client_batch is None or _is_count(client_batch)):
        raise ConfigError(
            f"client_batch = {shown(client_batch)}: must be a whole number >= 1, or None for as "
            "many as the memory allows."
        )
    return client_batch


def check_limits(memory_limit: float, max_batch: int | None) -> None:
    """Raise ConfigError unless they are a number of GiB, and a number of runs or None."""
    if not (max_batch is None or _is_count(max_batch)):
        raise ConfigError(
            f"max_batch = {shown(max_batch)}: must be a whole number >= 1, or None for as many as "
            "fit."
        )
    if isinstance(memory_limit, bool) or not (
        isinstance(memory_limit, int | float) and memory_limit > 0
    ):
        raise ConfigError(f"memory_limit = {shown(memory_limit)}: must be a number > 0, in GiB.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def execution_of(client_batch: int | None, mesh: Mesh | None = None) -> Execution:
    """Return how cohorts are trained: side by side, over a mesh, in JAX's configured precision.

    Raises:
      ConfigError: if ``client_batch`` is no number of clients.
    """
    precision = jax.config.values["jax_default_matmul_precision"]
    return Execution(check_client_batch(client_batch), mesh, precision)
