"""Checkpoints of unfinished chunks: state and records so far, saved now and then by Orbax."""

from __future__ import annotations

import hashlib
import pathlib
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pause_jax.sweeps.plan import Chunk
from pause_jax.sweeps.store import LOG, Store

# Seconds between two checkpoints of a chunk.
SAVE_EVERY = 60.0
# Largest share of a run's time that saving may take.
SHARE = 0.01
# Orbax has one set of names for all saves of a process.
_ONE_AT_A_TIME = threading.Lock()


class Point(NamedTuple):
    """Where a chunk resumes: the number of finished segments, the state, one record a segment."""

    segments: int
    state: Any
    records: list[Any]


class Checkpoint:
    """The checkpoint of one chunk."""

    def __init__(self, store: Store, chunk: Chunk):
        self._store = store
        self._folder = store.checkpoint_path(chunk)
        self._cost = 0.0
        self._last = time.monotonic()

    def restored(self, state: Any, shapes: Callable[[int], list[Any]]) -> Point | None:
        """Return where the chunk resumes, or None if nothing whole was saved.

        Args:
          state: a state with the same kinds, shapes and devices.
          shapes: number of segments -> shapes of their records.
        """
        if not self._folder.is_dir():
            return None
        saved = [int(path.name) for path in self._folder.iterdir() if path.name.isdigit()]
        for segments in sorted(saved, reverse=True):
            path = self._folder / str(segments)
            try:
                return _restored(path, segments, state, shapes(segments))
            except Exception as error:  # whatever a damaged checkpoint makes of itself
                LOG.warning("%s: is damaged (%s) and is not used.", path, type(error).__name__)
                shutil.rmtree(path, ignore_errors=True)
        return None

    def save_if_due(self, point: Point) -> None:
        """Save if the last checkpoint is old enough."""
        if time.monotonic() - self._last >= max(SAVE_EVERY, self._cost / SHARE):
            self.save(point)

    def save(self, point: Point) -> None:
        """Save, then delete the checkpoint before."""
        if self._store.failed:
            return
        start = time.monotonic()
        path = self._folder / str(point.segments)
        if not path.exists():
            with self._store.tolerated():
                _save(path, point)
                for other in self._folder.iterdir():
                    if other != path:
                        shutil.rmtree(other, ignore_errors=True)
        self._last = time.monotonic()
        self._cost = self._last - start


def _checkpointer() -> Any:
    """Return Orbax's checkpointer, which makes its folders at once.

    For one that it cannot make, as on a full disk, its threads would wait for minutes, and the
    process with them at its end.
    """
    import orbax.checkpoint as ocp

    options = ocp.AsyncOptions(create_directories_asynchronously=False)
    return ocp.StandardCheckpointer(async_options=options)


def _save(path: pathlib.Path, point: Point) -> None:
    leaves = [_plain(leaf) for leaf in jax.tree.leaves((point.state, point.records))]
    tree = {**_by_number(leaves), "digest": _digest(leaves)}
    with _ONE_AT_A_TIME, _checkpointer() as checkpointer:
        try:
            checkpointer.save(path.absolute(), tree)
            checkpointer.wait_until_finished()
        except (ValueError, RuntimeError) as error:  # what the file library makes of a full disk
            raise OSError(str(error).splitlines()[0]) from error


def _restored(path: pathlib.Path, segments: int, state: Any, shapes: list[Any]) -> Point:
    like, structure = jax.tree.flatten((state, shapes))
    wanted = [_plain(leaf) for leaf in like]
    tree = {**_by_number(wanted), "digest": _digest([])}
    with _ONE_AT_A_TIME, _checkpointer() as checkpointer:
        saved = checkpointer.restore(path.absolute(), tree)
    leaves = [saved.get(f"{i:04}", leaf) for i, leaf in enumerate(wanted)]
    if not np.array_equal(saved["digest"], _digest(leaves)):
        raise ValueError("not what was saved")
    placed = [_placed(leaf, kind) for leaf, kind in zip(leaves, like, strict=True)]
    return Point(segments, *jax.tree.unflatten(structure, placed))


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    """Convert a leaf to NumPy: a key to its data, a shape to zeros."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return np.zeros(leaf.shape, leaf.dtype)
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _by_number(leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Name the leaves that have entries: Orbax refuses arrays without."""
    return {f"{i:04}": leaf for i, leaf in enumerate(leaves) if leaf.size}


def _digest(leaves: list[np.ndarray]) -> np.ndarray:
    content = hashlib.sha256()
    for leaf in leaves:
        content.update(np.ascontiguousarray(leaf).tobytes())
    return np.frombuffer(content.digest(), np.uint8)


def _placed(leaf: np.ndarray, like: Any) -> Any:
    if isinstance(like, jax.ShapeDtypeStruct):
        return leaf
    if _is_key(like):
        data = jax.device_put(leaf, jax.random.key_data(like).sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
    return jax.device_put(leaf, like.sharding)
