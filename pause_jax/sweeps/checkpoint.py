"""Periodic checkpoints of unfinished chunks, with the current state and the records so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pause_jax.base.archive import load_arrays, save_arrays
from pause_jax.base.source_file import written
from pause_jax.sweeps.plan import Chunk
from pause_jax.sweeps.store import LOG, Store

# Minimum time between two checkpoints of a chunk, in seconds.
SAVE_EVERY = 60.0
# Maximum fraction of a chunk's run time spent on checkpoints.
SHARE = 0.01


class Point(NamedTuple):
    """State of a chunk after ``segments`` finished segments, with one record per segment."""

    segments: int
    state: Any
    records: list[Any]


class Checkpoint:
    """Checkpoint file of one chunk."""

    def __init__(self, store: Store, chunk: Chunk):
        self._store = store
        self._path = store.checkpoint_path(chunk)
        self._cost = 0.0
        self._last = time.monotonic()

    def restored(self, state: Any, shapes: Callable[[int], list[Any]]) -> Point | None:
        """Return the resume point, or None if the checkpoint is missing or damaged.

        Args:
          state: state with the expected dtypes, shapes and devices.
          shapes: function from a number of segments to the shapes of their records.
        """
        if not self._path.exists():
            return None
        try:
            saved = load_arrays(self._path.read_bytes())
            segments = int(saved["segments"])
            like, structure = jax.tree.flatten((state, shapes(segments)))
            leaves = [_placed(saved[f"{i:04}"], leaf) for i, leaf in enumerate(like)]
        except (OSError, LookupError, ValueError) as error:
            LOG.warning("%s: is damaged (%s) and is not used.", self._path, error)
            self._path.unlink(missing_ok=True)
            return None
        return Point(segments, *jax.tree.unflatten(structure, leaves))

    def save_if_due(self, point: Point) -> None:
        """Save ``point`` if ``SAVE_EVERY`` and ``SHARE`` allow another checkpoint."""
        if time.monotonic() - self._last >= max(SAVE_EVERY, self._cost / SHARE):
            self.save(point)

    def save(self, point: Point) -> None:
        """Replace the checkpoint with ``point``, unless an earlier write of the store failed."""
        if self._store.failed:
            return
        start = time.monotonic()
        leaves = jax.tree.leaves((point.state, point.records))
        arrays = {f"{i:04}": _plain(leaf) for i, leaf in enumerate(leaves)}
        with self._store.tolerated(), written(self._path) as file:
            save_arrays(file, {"segments": np.asarray(point.segments), **arrays})
        self._last = time.monotonic()
        self._cost = self._last - start


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    """Convert a leaf to a NumPy array that npz supports (key data, or the bits of bfloat16)."""
    array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array


def _placed(saved: np.ndarray, like: Any) -> Any:
    if _is_key(like):
        data = jax.device_put(saved, jax.random.key_data(like).sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
    leaf = saved.view(like.dtype)
    return leaf if isinstance(like, jax.ShapeDtypeStruct) else jax.device_put(leaf, like.sharding)
