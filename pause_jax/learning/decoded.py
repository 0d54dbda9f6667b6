"""The cache of decoded data: arrays in one file, by the source that they were read from."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from pause_jax.base.cache import cache_folder
from pause_jax.base.source_file import written

# ``x`` and ``y``, and what goes with them in ``Dataset.of``.
Arrays = dict[str, Any]


def decoded(name: str, source: str, read: Callable[[], Arrays]) -> Arrays:
    """Read a data set once, then from one file of the cache folder; read anew if that is damaged.

    ``source`` stands for its contents: another source is read anew.
    """
    path = cache_folder() / f"{name}-{source}.npz"
    if path.is_file():
        try:
            with path.open("rb") as file, np.load(file) as arrays:
                return dict(arrays)
        except Exception as error:  # NumPy raises many types for what is no such file
            warnings.warn(
                f"{path} is damaged ({type(error).__name__}), so {name} is decoded anew.",
                stacklevel=2,
            )
    arrays = read()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written(path) as out:
            np.savez(out, **arrays)
    except OSError as error:
        warnings.warn(
            f"{path} cannot be written ({error}), so {name} is decoded at every start. Name "
            "another folder in PAUSE_JAX_CACHE.",
            stacklevel=2,
        )
    return arrays


def is_decoded(name: str) -> bool:
    """Whether the cache has the data set, from whatever source."""
    return any(cache_folder().glob(f"{name}-*.npz"))
