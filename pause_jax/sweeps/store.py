"""Finished runs of a sweep in a folder.

``made_by.json`` describes the sweep, each ``chunk-*.npz`` holds finished runs, and a folder
``checkpoint-*`` holds an unfinished chunk (:mod:`pause_jax.sweeps.checkpoint`). Files are written
under a temporary name and renamed. The process that runs the sweep holds ``lock``. A process that
dies at any moment leaves a folder that the next one resumes.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import filelock
import numpy as np

from pause_jax.base.source_file import written
from pause_jax.base.struct import ConfigError
from pause_jax.sweeps.labels import Rows
from pause_jax.sweeps.plan import Chunk, SweepPlan
from pause_jax.sweeps.provenance import different, fingerprint

LOG = logging.getLogger("pause_jax")
# Differences that are named when a folder is that of another sweep.
NAMED = 3
_DESCRIPTION = "made_by.json"
# What a store holds, with the temporary files of a writer that died.
_PATTERNS = (f"{_DESCRIPTION}*", "chunk-*", "checkpoint-*", "lock")


class Store:
    """A folder of finished chunks of one sweep.

    Attributes:
      plan: of the sweep, with the chunks of the process that began it.
      failed: why nothing more can be written, or empty.
    """

    def __init__(self, folder: pathlib.Path, plan: SweepPlan):
        self.folder = folder
        self.plan = plan
        self.failed = ""
        self._fingerprint = fingerprint(plan.made_by)

    @classmethod
    def create(cls, folder: pathlib.Path, plan: SweepPlan) -> Store:
        """Return the store of a sweep in a folder: the existing one, or a new one.

        Raises:
          ConfigError: if the folder holds another sweep, cannot be written, or is in use.
        """
        path = folder / _DESCRIPTION
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                chunkings = [(each.batch, each.segments) for each in plan.chunkings]
                text = json.dumps({"made_by": plan.made_by, "chunkings": chunkings}, indent=1)
                with _locked(folder):
                    # Another process may have begun before the lock was free.
                    if not path.exists():
                        with written(path) as file:
                            file.write(text.encode())
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot keep a sweep ({error.strerror}). Choose another folder."
            ) from None
        differences, plan = compare_store(folder, plan)
        if differences:
            more = f", and {len(differences) - NAMED} more" if len(differences) > NAMED else ""
            raise ConfigError(
                f"{folder}: holds another sweep: {'; '.join(differences[:NAMED])}{more}. "
                "Choose another folder, or run the sweep that it holds."
            )
        return cls(folder, plan)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running the sweep, and delete what one that died left.

        Raises:
          ConfigError: if another process runs it.
        """
        with _locked(self.folder):
            for part in self.folder.glob("*.part"):
                part.unlink(missing_ok=True)
            yield

    def path(self, chunk: Chunk) -> pathlib.Path:
        """Return the file of a chunk."""
        return self.folder / f"chunk-{chunk.group:03}-{chunk.first:07}.npz"

    def checkpoint_path(self, chunk: Chunk) -> pathlib.Path:
        """Return the folder of an unfinished chunk."""
        return self.folder / f"checkpoint-{chunk.group:03}-{chunk.first:07}"

    def finished(self) -> dict[Chunk, Rows]:
        """Read all finished chunks; a damaged one counts as missing."""
        chunks = self.plan.chunks
        read = {chunk: self.rows(chunk) for chunk in chunks}
        finished = {chunk: rows for chunk, rows in read.items() if rows is not None}
        if finished:
            message = "%s: resuming; %d of %d chunks are finished."
            LOG.info(message, self.folder, len(finished), len(chunks))
        return finished

    def rows(self, chunk: Chunk) -> Rows | None:
        """Read a finished chunk; None if it is missing or damaged."""
        path = self.path(chunk)
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as saved:
                about = json.loads(str(saved["about"]))
                if about["made_by"] != self._fingerprint:
                    raise ValueError("a chunk of another sweep")
                return Rows(
                    values={name: saved[f"value {name}"] for name in about["names"]},
                    epsilon_unit=about["epsilon_unit"],
                    num_parameters=about["num_parameters"],
                    unnoised=tuple(about["unnoised"]),
                )
        except Exception as error:  # whatever a damaged zip file makes of itself
            LOG.warning("%s: is damaged (%s) and runs again.", path, error)
            return None

    def save(self, chunk: Chunk, rows: Rows) -> None:
        """Write a finished chunk, and delete its checkpoints.

        A full disk is reported once, and the sweep continues.
        """
        if self.failed:
            return
        about = {
            "made_by": self._fingerprint,
            "names": list(rows.values),
            "epsilon_unit": rows.epsilon_unit,
            "num_parameters": rows.num_parameters,
            "unnoised": list(rows.unnoised),
        }
        arrays: dict[str, Any] = {f"value {name}": value for name, value in rows.values.items()}
        with self.tolerated():
            with written(self.path(chunk)) as file:
                np.savez(file, about=np.asarray(json.dumps(about)), **arrays)
            shutil.rmtree(self.checkpoint_path(chunk), ignore_errors=True)

    @contextlib.contextmanager
    def tolerated(self) -> Iterator[None]:
        """Keep running after a write error: what was computed is not lost for it."""
        try:
            yield
        except OSError as error:
            if not self.failed:
                self.failed = error.strerror or str(error)
                LOG.warning(
                    "%s: cannot be written (%s). The sweep goes on, but nothing more of it is kept "
                    "until it ends.",
                    self.folder,
                    self.failed,
                )


def compare_store(folder: pathlib.Path, plan: SweepPlan) -> tuple[list[str], SweepPlan]:
    """Compare the sweep in a folder with a plan.

    Returns:
      (differences in words, the plan; without differences, with the folder's chunks).

    Raises:
      ConfigError: if the folder holds no sweep, or its description is damaged.
    """
    path = folder / _DESCRIPTION
    try:
        table = json.loads(path.read_text())
        if differences := different(table["made_by"], plan.made_by):
            return differences, plan
        # On other cores the chunks would be others, and so would their rounding.
        chunkings = [
            chunking._replace(batch=batch, segments=segments)
            for chunking, (batch, segments) in zip(plan.chunkings, table["chunkings"], strict=True)
        ]
        if min(min(each) for each in chunkings) < 1:
            raise ValueError("the numbers of chunkings must be >= 1")
    except OSError as error:
        raise ConfigError(f"{folder}: holds no kept sweep ({error.strerror}).") from None
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: is damaged ({error}), so what the folder holds cannot be known. Remove the "
            "folder, or choose another one."
        ) from None
    return [], plan._replace(chunkings=chunkings)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(filelock.FileLock(folder / "lock", blocking=False))
        except filelock.Timeout:
            raise ConfigError(
                f"{folder}: another process runs this sweep. Wait for it, or stop it."
            ) from None
        except (NotImplementedError, OSError) as error:
            LOG.warning("%s: cannot be locked (%s); goes on.", folder, error)
        yield


def store_is_empty(folder: pathlib.Path) -> bool:
    """Return whether nothing was finished in a store, and no process runs its sweep."""
    if not folder.is_dir() or any(folder.glob("chunk-*")) or any(folder.glob("checkpoint-*/*")):
        return False
    try:
        with _locked(folder):
            return True
    except ConfigError:
        return False


def discard_store(folder: pathlib.Path) -> None:
    """Delete a store, if there is one; a file that a store does not have stays.

    Raises:
      ConfigError: if another process runs its sweep.
    """
    if not folder.is_dir() or folder.is_symlink():
        return
    with _locked(folder):
        pass
    for path in [path for pattern in _PATTERNS for path in folder.glob(pattern)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
