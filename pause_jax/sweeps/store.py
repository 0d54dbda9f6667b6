"""On-disk store of a sweep's finished runs.

``made_by.json`` describes the sweep, ``chunk-*.npz`` files contain finished runs, and
``checkpoint-*.npz`` files contain the state of unfinished chunks. Files are written under temporary
names and then renamed. The process that runs the sweep locks the ``lock`` file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import filelock
import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from pause_jax.base.archive import decoded, load_arrays, save_arrays
from pause_jax.base.source_file import written
from pause_jax.base.spelling import listed
from pause_jax.base.struct import ConfigError
from pause_jax.sweeps.labels import Rows
from pause_jax.sweeps.plan import Chunk, SweepPlan
from pause_jax.sweeps.provenance import different, fingerprint

LOG = logging.getLogger("pause_jax")
# Minimum time between two checkpoints of a chunk, in seconds.
SAVE_EVERY = 60.0
# Maximum number of differences listed in a message.
NAMED = 3
_DESCRIPTION = "made_by.json"
# File-name patterns of a store's files, including temporary files of crashed writers.
_PATTERNS = (f"{_DESCRIPTION}*", "chunk-*", "checkpoint-*", "lock")


class _Description(msgspec.Struct):
    """Contents of ``made_by.json``. ``digest`` covers the other two fields."""

    made_by: dict[str, Any]
    chunkings: list[tuple[int, int]]
    digest: str


class Store:
    """Folder with the finished chunks of one sweep.

    Attributes:
      plan: plan of the sweep, split into the same chunks as when the store was created.
      failed: message of the first write error, or "" if none occurred. Later writes are skipped.
    """

    def __init__(self, folder: pathlib.Path, plan: SweepPlan):
        self.folder = folder
        self.plan = plan
        self.failed = ""
        self._fingerprint = fingerprint(plan.made_by)

    @classmethod
    def create(cls, folder: pathlib.Path, plan: SweepPlan) -> Store:
        """Open or create a sweep's store in a folder.

        Raises:
          ConfigError: if the folder contains a different or damaged sweep, or is not writable.
        """
        path = folder / _DESCRIPTION
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                chunkings = [(each.batch, each.segments) for each in plan.chunkings]
                described = {"made_by": plan.made_by, "chunkings": chunkings}
                text = json.dumps({**described, "digest": fingerprint(described)}, indent=1)
                with _locked(folder):
                    # Another process may have created the store before we acquired the lock.
                    if not path.exists():
                        with written(path) as file:
                            file.write(text.encode())
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot store a sweep ({error.strerror}). Choose another folder."
            ) from None
        differences, plan = compare_store(folder, plan)
        if differences:
            raise ConfigError(
                f"{folder}: contains a different sweep: {listed(differences, '; ', NAMED)}. Choose "
                "another folder, or run the stored sweep."
            )
        return cls(folder, plan)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the sweep for this process, and delete temporary files of crashed writers.

        Raises:
          ConfigError: if another process is running the sweep.
        """
        with _locked(self.folder):
            for part in self.folder.glob("*.part"):
                part.unlink(missing_ok=True)
            yield

    def path(self, chunk: Chunk) -> pathlib.Path:
        """Return the path of a finished chunk's file."""
        return self.folder / f"chunk-{chunk.group:03}-{chunk.first:07}.npz"

    def checkpoint_path(self, chunk: Chunk) -> pathlib.Path:
        """Return the path of an unfinished chunk's checkpoint."""
        return self.folder / f"checkpoint-{chunk.group:03}-{chunk.first:07}.npz"

    def finished(self) -> dict[Chunk, Rows]:
        """Return the rows of all finished, undamaged chunks."""
        chunks = self.plan.chunks
        read = {chunk: self.rows(chunk) for chunk in chunks}
        finished = {chunk: rows for chunk, rows in read.items() if rows is not None}
        if finished:
            message = "Resuming %s: %d of %d chunks finished."
            LOG.info(message, self.folder, len(finished), len(chunks))
        return finished

    def rows(self, chunk: Chunk) -> Rows | None:
        """Return the rows of a finished chunk, or None if it is missing or damaged."""
        path = self.path(chunk)
        if not path.exists():
            return None
        try:
            arrays = load_arrays(path.read_bytes())
            if arrays.pop("made_by") != self._fingerprint:
                raise ValueError("chunk from a different sweep")
            return Rows(
                epsilon_unit=str(arrays.pop("epsilon_unit")),
                num_parameters=int(arrays.pop("num_parameters")),
                unnoised=tuple(arrays.pop("unnoised").tolist()),
                values={name.removeprefix("value "): array for name, array in arrays.items()},
            )
        except (OSError, LookupError, ValueError) as error:
            LOG.warning("%s is damaged (%s). Rerunning the chunk.", path, error)
            return None

    def save(self, chunk: Chunk, rows: Rows) -> None:
        """Write a finished chunk, and delete its checkpoint."""
        if self.failed:
            return
        about = {"made_by": self._fingerprint, **rows._asdict()}
        arrays = {f"value {name}": value for name, value in about.pop("values").items()}
        arrays |= {name: np.asarray(value) for name, value in about.items()}
        with self.tolerated():
            with written(self.path(chunk)) as file:
                save_arrays(file, arrays)
            self.checkpoint_path(chunk).unlink(missing_ok=True)

    @contextlib.contextmanager
    def tolerated(self) -> Iterator[None]:
        """Continue after a write error (e.g. a full disk), because results remain in memory."""
        try:
            yield
        except OSError as error:
            if not self.failed:
                self.failed = error.strerror or str(error)
                LOG.warning(
                    "%s: cannot be written (%s). The sweep continues without storing further runs.",
                    self.folder,
                    self.failed,
                )


class Point(NamedTuple):
    """State of a chunk after ``segments`` segments, with one record per segment."""

    segments: int
    state: Any
    records: list[Any]


class Checkpoint:
    """Checkpoint file of one chunk."""

    def __init__(self, store: Store, chunk: Chunk):
        self._store = store
        self._path = store.checkpoint_path(chunk)
        self._last = time.monotonic()

    def restored(self, state: Any, shapes: Callable[[int], list[Any]]) -> Point | None:
        """Return the resume point, or None if the checkpoint is missing or damaged.

        Args:
          state: state with the expected dtypes, shapes and devices.
          shapes: function that maps n to the shapes and dtypes of the first n segments' records.
        """
        if not self._path.exists():
            return None
        try:
            saved = load_arrays(self._path.read_bytes())
            segments = int(saved["segments"])
            like, structure = jax.tree.flatten((state, shapes(segments)))
            leaves = [_placed(saved[f"{i:04}"], leaf) for i, leaf in enumerate(like)]
        except (OSError, LookupError, ValueError) as error:
            LOG.warning("%s is damaged (%s). Deleting the checkpoint.", self._path, error)
            self._path.unlink(missing_ok=True)
            return None
        return Point(segments, *jax.tree.unflatten(structure, leaves))

    def save_if_due(self, point: Point) -> None:
        """Save ``point`` if ``SAVE_EVERY`` seconds have passed since the start or the last save."""
        if time.monotonic() - self._last >= SAVE_EVERY:
            self.save(point)

    def save(self, point: Point) -> None:
        """Replace the checkpoint with ``point``, unless an earlier write to the store failed."""
        if self._store.failed:
            return
        leaves = jax.tree.leaves((point.state, point.records))
        arrays = {f"{i:04}": _plain(leaf) for i, leaf in enumerate(leaves)}
        with self._store.tolerated(), written(self._path) as file:
            save_arrays(file, {"segments": np.asarray(point.segments), **arrays})
        self._last = time.monotonic()


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


def compare_store(folder: pathlib.Path, plan: SweepPlan) -> tuple[list[str], SweepPlan]:
    """Compare the sweep in a folder with a plan.

    Returns:
      (list of differences, plan). If the sweeps match, the plan uses the store's chunks.

    Raises:
      ConfigError: if the folder contains no sweep, or its description is damaged.
    """
    path = folder / _DESCRIPTION
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{folder}: contains no stored sweep ({error.strerror}).") from None
    advice = "Remove the folder, or choose another one."
    described = decoded(path, content, _Description, advice)
    if differences := different(described.made_by, plan.made_by):
        return differences, plan
    whole = {"made_by": described.made_by, "chunkings": described.chunkings}
    if described.digest != fingerprint(whole):
        raise ConfigError(f"{path}: is damaged (its contents do not match its digest). {advice}")
    # Reuse the stored chunk sizes, because they depend on the number of cores and affect rounding.
    chunkings = [
        chunking._replace(batch=batch, segments=segments)
        for chunking, (batch, segments) in zip(plan.chunkings, described.chunkings, strict=True)
    ]
    return [], plan._replace(chunkings=chunkings)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(filelock.FileLock(folder / "lock", blocking=False))
        except filelock.Timeout:
            raise ConfigError(
                f"{folder}: another process is running this sweep. Wait for it, or stop it."
            ) from None
        except (NotImplementedError, OSError) as error:
            LOG.warning("%s: cannot be locked (%s). Continuing without the lock.", folder, error)
        yield


def store_is_empty(folder: pathlib.Path) -> bool:
    """Return whether a store contains no chunks or checkpoints and is not in use by any process."""
    if not folder.is_dir() or any(folder.glob("chunk-*")) or any(folder.glob("checkpoint-*")):
        return False
    try:
        with _locked(folder):
            return True
    except ConfigError:
        return False


def discard_store(folder: pathlib.Path) -> None:
    """Delete a store if it exists, but keep all other files in its folder.

    Raises:
      ConfigError: if another process is running the store's sweep.
    """
    if not folder.is_dir() or folder.is_symlink():
        return
    with _locked(folder):
        pass
    for path in [path for pattern in _PATTERNS for path in folder.glob(pattern)]:
        with contextlib.suppress(OSError):  # unlink fails on a folder that matches a pattern
            path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
