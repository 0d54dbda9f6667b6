"""Validation of arguments, keys, client ids, required memory and latency units before a run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.typing import ArrayLike

from pause_jax.base.client_ids import gap, plain
from pause_jax.base.memory import check_memory, tree_bytes
from pause_jax.base.spelling import listed, shown
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, canonical, loaded, validate
from pause_jax.learning import Dataset, Execution
from pause_jax.run.programs import state_shapes
from pause_jax.run.record.result import Quantities, recorded_bytes

FEWER = "Simulate fewer clients or a smaller model."
# Warn if min_latency is below this fraction of the fastest client's expected latency. With 30
# clients and log-normal latencies, 300 rounds of random selection take 293 simulated seconds (8
# seeds). PAUSE with Thompson sampling takes 251 seconds if min_latency is 1/2 of the fastest
# client's latency, 284 if it is 1/10, and 298 if it is 1/50.
FAR_BELOW = 1 / 50


def prepare(config: SimConfig, data: Dataset | None = None) -> tuple[SimConfig, Any]:
    """Validate a config, load its files and data on the host, and return (canonical config, data).

    Raises ConfigError if the config, one of its files or its data set is invalid.
    """
    validate(config)
    config, learning = loaded(config), config.learning
    loaded_data = None if learning is None else learning.load(config.num_clients, data)
    client_ids(config, loaded_data)
    return canonical(config), loaded_data


def check_key(key: Array) -> None:
    """Raise ConfigError unless ``key`` is a typed key or an array of typed keys."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise ConfigError(
            f"key = {shown(key)}: must be a typed JAX key. Make one with jax.random.key(0)."
        )


def check_one_key(key: Array, taker: str, fix: str) -> None:
    """Raise ConfigError unless ``key`` is a single typed key."""
    check_key(key)
    if key.ndim:
        raise ConfigError(f"key has shape {key.shape}: {taker} takes one key. {fix}")


def checked_keys(keys: Array) -> Array:
    """Validate one or more typed keys and return them as a key array [S].

    Raises:
      ConfigError: if the keys are untyped, empty or not distinct, or have more than one axis.
    """
    check_key(keys)
    keys = keys if keys.ndim else keys[None]
    if keys.ndim > 1 or not keys.size:
        raise ConfigError(
            f"keys has shape {keys.shape}: must have shape [S] with S >= 1. Make them with "
            "jax.random.split(jax.random.key(0), S)."
        )
    first: dict[bytes, int] = {}
    for place, words in enumerate(np.asarray(jax.random.key_data(keys))):
        before = first.setdefault(words.tobytes(), place)
        if before != place:
            raise ConfigError(
                f"keys[{place}] equals keys[{before}]: keys must differ, because identical runs "
                "make standard errors too small. Use jax.random.split(jax.random.key(0), S)."
            )
    return keys


def checked_devices(devices: Sequence[jax.Device] | None) -> list[jax.Device]:
    """Validate devices and return them as a list (default: all devices).

    Raises:
      ConfigError: if an entry is not a JAX device, a device is repeated, or the list is empty.
    """
    if devices is None:
        return jax.devices()
    listed = list(devices) if hasattr(devices, "__iter__") else []
    are_devices = all(isinstance(device, jax.Device) for device in listed)
    if not listed or len(set(listed)) < len(listed) or not are_devices:
        raise ConfigError(
            f"devices = {shown(devices)}: must be a list of distinct JAX devices, such as "
            "jax.devices()[:1]. Omit devices to use the default."
        )
    return listed


def check_limits(memory_limit: float, max_batch: int | None) -> None:
    """Raise ConfigError unless ``memory_limit`` (GiB) is > 0 and ``max_batch`` is None or >= 1."""
    _check_count("max_batch", max_batch, "runs")
    if isinstance(memory_limit, bool) or not (
        isinstance(memory_limit, int | float) and 0 < memory_limit < math.inf
    ):
        raise ConfigError(
            f"memory_limit = {shown(memory_limit)}: must be a finite number > 0, in GiB."
        )


def _check_count(name: str, value: Any, counted: str) -> None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not (value is None or is_count):
        raise ConfigError(
            f"{name} = {shown(value)}: must be a whole number >= 1, or None for as many {counted} "
            "as fit in memory."
        )


def execution_of(client_batch: int | None, mesh: Mesh | None = None) -> Execution:
    """Build the execution options for local training, with JAX's configured matmul precision.

    Raises:
      ConfigError: if ``client_batch`` is neither None nor an integer >= 1.
    """
    _check_count("client_batch", client_batch, "clients")
    return Execution(client_batch, mesh, jax.config.values["jax_default_matmul_precision"])


def client_ids(config: SimConfig, data: Any) -> tuple[str, ...]:
    """Return the ids of clients 0, ..., K - 1.

    Clients are numbered in the natural order of their ids, both in the data and in each file.
    Number k therefore denotes the same client in all sources with the same first K ids.
    The result is empty if clients are numbered 0, 1, ..., or are drawn from a larger data set.

    Raises:
      ConfigError: if the data, ``latency`` and ``availability_trace`` list different ids, if a
        file's client numbers have gaps and the data has no ids, or if a file lists specific clients
        but the run draws clients from a larger data set.
    """
    num_clients = config.num_clients
    keeps_clients = config.learning is not None and config.learning.partition.keeps_clients
    data_ids = (data.client_ids or ()) if keeps_clients and isinstance(data, Dataset) else ()
    models = {"latency": config.latency, "availability_trace": config.availability_trace}
    files = {
        f"{part}.path = {getattr(model, 'path', '')!r}": model.client_ids
        for part, model in models.items()
        if model is not None and model.client_ids
    }
    if len(data_ids) > num_clients:
        if files:
            raise ConfigError(
                f"num_clients = {num_clients}: the run draws a random subset of the data's "
                f"{len(data_ids)} clients, but {next(iter(files))} has values for specific "
                f"clients. Set num_clients = {len(data_ids)}, or remove the other clients' samples."
            )
        return ()
    for where, ids in files.items():
        if not data_ids and (missing := gap(ids)):
            raise ConfigError(
                f"{where}: has no line for client {missing}. Number clients 0, 1, ... without "
                "gaps, or use names."
            )
    sources = {"the data": data_ids} | files if data_ids else files
    if not sources:
        return ()
    reference, *others = sources
    expected = sources[reference][:num_clients]
    for where in others:
        if sources[where][:num_clients] != expected:
            raise _other_clients(where, sources[where], reference, expected)
    return () if expected == plain(num_clients) else expected


def _other_clients(
    where: str, ids: tuple[str, ...], reference: str, expected: tuple[str, ...]
) -> ConfigError:
    missing = [repr(each) for each in expected if each not in set(ids)]
    surplus = [repr(each) for each in ids if each not in set(expected)]
    parts = [f"has no line for these clients: {listed(missing)}"] if missing else []
    parts += [f"has clients that {reference} does not have: {listed(surplus)}"] if surplus else []
    return ConfigError(
        f"{where}: {', and '.join(parts)}. The file must have the same client ids as "
        f"{reference}. Add, remove or rename clients."
    )


def check_size(config: SimConfig, data: Any, quantities: Quantities, num_runs: int = 1) -> None:
    """Raise ConfigError if memory cannot hold the records or, on a CPU, two copies of the state."""
    sizes = f"num_clients = {config.num_clients}"
    if jax.default_backend() == "cpu":
        before_and_after = 2 * tree_bytes(state_shapes(config, data))
        check_memory(before_and_after, f"{sizes}: a round", FEWER)
    check_memory(
        num_runs * recorded_bytes(quantities, config),
        f"{sizes}, num_rounds = {config.num_rounds}: the record of {num_runs} run"
        + "s" * (num_runs > 1),
        "Simulate fewer clients, rounds or seeds, or record fewer quantities (record=...).",
    )


def warn_if_far(min_latency: ArrayLike, fastest: ArrayLike) -> None:
    """Warn if ``min_latency`` is far below ``fastest`` (both in seconds), but not while tracing.

    ``fastest`` is the fastest client's expected latency. If ``min_latency`` is far smaller (often
    because latencies are in milliseconds), speeds are negligible compared to exploration bonuses.
    """
    if isinstance(fastest, jax.core.Tracer):
        return
    least, fastest = np.ravel(min_latency), np.ravel(fastest)
    far = np.flatnonzero(least < FAR_BELOW * fastest)
    if far.size:
        warnings.warn(
            f"latency.min_latency = {least[far[0]]:g}: is far below the {fastest[far[0]]:.3g} s "
            "of the fastest client, so all speeds are near 0 and policies hardly learn. Specify "
            "all latencies in seconds, and set latency.min_latency slightly below the fastest "
            "client's latency.",
            stacklevel=3,
        )


def warn_if_cut(config: SimConfig, sizes: Array) -> None:
    """Warn if ``max_steps`` cuts short the training of the client with the most samples."""
    if config.learning is None:
        return
    largest = int(np.max(sizes))
    if steps := config.learning.cut_steps(largest):
        warnings.warn(
            f"learning.max_steps = {config.learning.max_steps}: cuts short the training of the "
            f"largest client, whose {largest} samples need {steps} local steps. Set "
            f"learning.max_steps = {steps} to keep all steps.",
            stacklevel=3,
        )
