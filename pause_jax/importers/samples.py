"""Conversion of client samples to the arrays of ``clients.npz``."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pause_jax.base.checks import float32
from pause_jax.base.client_ids import client_id
from pause_jax.importers.request import Imported, refuse

# Inputs [n, ...] and targets [n, ...] of each client.
Samples = dict[str, tuple[NDArray[Any], NDArray[Any]]]


def imported(path: pathlib.Path, train: Samples, test: Samples) -> Imported:
    """Concatenate the clients' samples into the arrays of ``clients.npz`` (see ``Files``).

    Raises:
      ConfigError: if no client has training samples, or a client's id or samples are invalid.
    """
    full = {client: part for client, part in train.items() if len(part[0])}
    if not full:
        refuse(path, "must have at least one client with training samples")
    for client in full:
        try:
            client_id(client)
        except ValueError as error:
            refuse(path, f"client {client!r}: {error}")
    arrays = dict(zip("xy", _joined(path, full), strict=True))
    arrays["clients"] = np.repeat(np.asarray(list(full)), [len(x) for x, _ in full.values()])
    tested = {client: part for client, part in test.items() if client in full and len(part[0])}
    if tested:
        arrays |= zip(("x_test", "y_test"), _joined(path, tested), strict=True)
    notes = []
    if missing := len(train) - len(full):
        notes.append(f"Skipped clients without training samples: {missing}.")
    if untrained := sum(client not in full and len(part[0]) > 0 for client, part in test.items()):
        notes.append(f"Skipped clients with only test samples: {untrained}.")
    return Imported({}, arrays, tuple(notes))


def pixels(values: NDArray[Any]) -> NDArray[Any]:
    """Return uint8 images [n, 28, 28, 1] if the values are grey levels divided by 255.

    Other values are returned as float32.
    """
    side = 28
    grey = values.size and values.shape[1:] in ((side * side,), (side, side))
    if grey and values.min() >= 0 and values.max() <= 1:
        whole = np.rint(255 * values)
        if np.abs(255 * values - whole).max() < 1e-3:
            return whole.astype(np.uint8).reshape(-1, side, side, 1)
    return float32(values)


def _joined(path: pathlib.Path, samples: Samples) -> tuple[NDArray[Any], NDArray[Any]]:
    form = None
    for client, (x, y) in samples.items():
        if len(x) != len(y):
            refuse(path, f"client {client!r} has {len(x)} inputs but {len(y)} targets")
        own = (x.shape[1:], x.dtype, y.shape[1:], y.dtype)
        if form not in (None, own):
            refuse(
                path,
                f"samples of client {client!r} differ in shape or dtype from earlier clients' "
                "samples",
            )
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            refuse(path, f"client {client!r} has a value that is not finite")
        form = own
    inputs, targets = zip(*samples.values(), strict=True)
    return np.concatenate(inputs), np.concatenate(targets)
