"""Importer for Hugging Face data sets with a client column.

Format: output of ``Dataset.save_to_disk`` (huggingface.co/docs/datasets, Apache-2.0). Each data
set has its own licence.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pause_jax.base.registry import require
from pause_jax.base.spelling import nearest
from pause_jax.base.struct import ConfigError
from pause_jax.importers.request import Imported, Request, refuse
from pause_jax.importers.samples import Samples, imported

# Usual column names of inputs, targets and client ids. --columns overrides them.
_USUAL = {
    "x": ("image", "img", "x", "features"),
    "y": ("label", "labels", "character", "y"),
    "client": ("client", "client_id", "writer_id", "user_id", "natural_id"),
}


def read(request: Request) -> Imported:
    """Read each client's samples from a folder written by ``save_to_disk``.

    The ``train`` split becomes the training set, and any ``test`` split becomes the test set.

    Raises:
      ConfigError: if the datasets package, the folder, the ``train`` split or a column is missing.
    """
    datasets = require("datasets", "huggingface", "huggingface")
    path = request.path
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # the package raises many exception types
        refuse(path, f"must be a folder written by save_to_disk ({str(error).splitlines()[0]})")
    splits = dict(found) if isinstance(found, datasets.DatasetDict) else {"train": found}
    if "train" not in splits:
        refuse(path, f"must have a split named train (splits: {', '.join(splits)})")
    train = _samples(request, path, splits["train"])
    test = _samples(request, path, splits["test"]) if "test" in splits else {}
    return imported(path, train, test)


def _samples(request: Request, path: pathlib.Path, part: Any) -> Samples:
    x, y, client = (_column(path, part, name, request.columns) for name in _USUAL)
    owners = np.asarray(part[client][:]).astype(str)
    kept = request.kept(set(owners.tolist()))
    places = np.flatnonzero(np.isin(owners, list(kept)))
    # A single read for all clients is faster than one read per client.
    chosen, owners = part.select(places), owners[places]
    inputs, targets = _array(path, chosen, x), _array(path, chosen, y)
    rows = pd.Series(owners).groupby(owners).indices
    return {str(name): (inputs[own], targets[own]) for name, own in sorted(rows.items())}


def _column(path: pathlib.Path, part: Any, name: str, columns: Mapping[str, str]) -> str:
    if unknown := sorted(set(columns) - set(_USUAL)):
        raise ConfigError(
            f"--columns {unknown[0]}: must be one of {', '.join(_USUAL)}."
            f"{nearest(unknown[0], _USUAL)}"
        )
    known = list(part.column_names)
    wanted = [columns[name]] if name in columns else list(_USUAL[name])
    for word in wanted:
        if word in known:
            return word
    refuse(
        path,
        f"has no column {' or '.join(wanted)} (columns: {', '.join(known)}). Select one with "
        f"--columns {name}=THEIRS",
    )


def _array(path: pathlib.Path, part: Any, column: str) -> NDArray[Any]:
    """Return a column as a numeric array. Greyscale images have shape [N, H, W, 1]."""
    # The pixels of a palette image are palette indices, not colours.
    rows = [
        np.asarray(row.convert("RGB") if getattr(row, "mode", "") in ("P", "PA") else row)
        for row in part[column][:]
    ]
    if len({row.shape for row in rows}) != 1 or not np.issubdtype(rows[0].dtype, np.number):
        refuse(path, f"column {column} must contain numbers, or images of the same shape")
    found = np.stack(rows)
    if np.issubdtype(found.dtype, np.floating):
        return found.astype(np.float32)
    is_image = type(part.features[column]).__name__ == "Image"
    return found[..., None] if is_image and found.ndim == 3 else found
