"""Protocol between the strategy and its clients: message keys, error codes, update format."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pause_jax.base.struct import ConfigError

T = TypeVar("T")
LOG = logging.getLogger("flwr.pause_jax")

# Keys in a client's configuration.
ROUND = "server-round"
EPSILON = "pause-epsilon"  # also the key of a release's epsilon in the metrics
# Keys in a client's metrics.
PARTICIPATION = "pause-participation"  # 1-based number of the release in the client's ledger
TOOK = "pause-seconds"  # latency measured by the client's clock
OURS = (EPSILON, PARTICIPATION, TOOK)

# Error code for a spent budget. Flower uses codes up to 8.
SPENT = 4801
# Error code if the client's ledger already has a release for this round.
REPEATED = 4802
# Errors after which a client is known to have released nothing: budget spent, app not loadable,
# exception in the app, mod precondition failed, invalid bundle, app crashed.
RELEASED_NOTHING = frozenset({SPENT, 1, 2, 6, 7, 8})

WHO = "client_number"
ASK_WHO = f"query.{WHO}"
# Key of the client number in a node's configuration, as in Flower's examples and simulation.
NUMBER = "partition-id"
# Name of each query's action, which is also the name of the metric in the answer.
NAMES = {"loss": "pause_loss", "features": "pause_features"}
BATCH = "pause-batch-size"


def is_float(array: NDArray[Any]) -> bool:
    """Return whether an array holds floats and is thus part of the update."""
    return bool(np.issubdtype(array.dtype, np.floating))


def flat_update(
    trained: Mapping[str, NDArray[Any]], before: Mapping[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """Return the flat update, float32 [d] (trained minus original values of all float arrays)."""
    parts = [
        np.ravel(np.asarray(trained[name], np.float32) - np.asarray(array, np.float32))
        for name, array in before.items()
        if is_float(array)
    ]
    return np.concatenate([*parts, np.zeros(0, np.float32)])


def only(records: Mapping[str, T], where: str, kind: str) -> tuple[str, T]:
    """Return the name and content of the only record in ``records``, or raise ConfigError."""
    if len(records) != 1:
        raise ConfigError(f"{where} has {len(records)} {kind}s: must have exactly one.")
    return next(iter(records.items()))
