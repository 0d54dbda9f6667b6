"""Names and numbers in the messages of strategy and clients, and the update in them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOG = logging.getLogger("flwr.pause_jax")

# In a client's configuration.
ROUND = "server-round"
EPSILON = "pause-epsilon"  # also in its metrics: what the release spent
# In a client's metrics.
PARTICIPATION = "pause-participation"  # number of the release in the client's ledger, from 1
TOOK = "pause-seconds"  # measured by the client's clock
OURS = (EPSILON, PARTICIPATION, TOOK)

# Error code of a client whose budget is spent; Flower's codes end at 8.
SPENT = 4801
# Of a client whose ledger has a release in this round already.
REPEATED = 4802
# Error codes of a client that released nothing: the app could not be loaded, raised, a mod refused,
# a bad bundle, the app crashed. With the other codes (expired, unavailable) nobody knows.
RELEASED_NOTHING = frozenset({SPENT, 1, 2, 6, 7, 8})

WHO = "client_number"
ASK_WHO = f"query.{WHO}"
# The client's number in its node's configuration, as in Flower's examples and simulation.
NUMBER = "partition-id"
# Action of a question, and metric of its answer.
NAMES = {"loss": "pause_loss", "features": "pause_features"}
BATCH = "pause-batch-size"


def is_float(array: NDArray[Any]) -> bool:
    """Return whether an array holds floats: those make up the update."""
    return bool(np.issubdtype(array.dtype, np.floating))


def flat_update(
    trained: Mapping[str, NDArray[Any]], before: Mapping[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """Return what training added to the model before it, all floats flat, [d]."""
    parts = [
        np.ravel(np.asarray(trained[name], np.float32) - np.asarray(array, np.float32))
        for name, array in before.items()
        if is_float(array)
    ]
    return np.concatenate([*parts, np.zeros(0, np.float32)])
