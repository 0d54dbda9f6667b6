"""The finished runs of a sweep in a folder: written once, whole or not at all, and never mixed.

``made_by.json`` says what the sweep is; each ``chunk-*.npz`` holds finished runs; a folder
``checkpoint-*`` holds a chunk in the middle (:mod:`pause_jax.sweeps.checkpoint`); ``lock`` and
``lease-*`` say who is at work (:mod:`pause_jax.sweeps.leases`). A process that dies at any moment
leaves a folder that the next one goes on with.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import filelock
import numpy as np

from pause_jax.base.source_file import sync_names, write_through
from pause_jax.base.struct import ConfigError
from pause_jax.sweeps.chunks import Chunking
from pause_jax.sweeps.config_summary import ConfigSummary, Rows, Variable
from pause_jax.sweeps.provenance import different, fingerprint

LOG = logging.getLogger("pause_jax")
FORMAT = 2
# Differences that are named when a folder is that of another sweep.
NAMED = 3
# What a store holds; what a writer leaves that dies begins with a dot.
_PATTERNS = (
    *("made_by.json", "chunk-*", "checkpoint-*", "lock", "lease-*"),
    *(".made_by.json.*", ".chunk-*"),
)


class Kept(NamedTuple):
    """What the description of a sweep on disk holds.

    Attributes:
      made_by: what its bits depend on, plain values.
      plans: how its runs are cut into chunks, by group.
      about: what a reader wants to know of it, such as the command.
    """

    made_by: dict[str, Any]
    plans: list[Chunking]
    about: dict[str, Any]


class Store:
    """A folder of finished chunks of one sweep.

    Attributes:
      folder: where it is.
      kept: its description.
      failed: why nothing more can be written, or empty.
    """

    def __init__(self, folder: pathlib.Path, kept: Kept):
        self.folder, self.kept, self.failed = folder, kept, ""

    @classmethod
    def created(cls, folder: pathlib.Path, kept: Kept) -> Store:
        """The store in a folder, made if there is none.

        Args:
          folder: where.
          kept: of the sweep that is to run; the plans of a store that is there already count.

        Raises:
          ConfigError: if the folder holds another sweep, or cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "made_by.json"
            if not path.exists():
                text = json.dumps(kept._asdict(), indent=1)
                # Of several processes that begin at the same moment one is the first.
                with _written_beside(path) as beside:
                    write_through(beside, text.encode())
                    _name_first(beside, path)
                    sync_names(folder)
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot keep a sweep ({error.strerror}). Choose another folder."
            ) from None
        there = cls.opened(folder)
        differences = different(there.kept.made_by, kept.made_by)
        if differences:
            more = f", and {len(differences) - NAMED} more" if len(differences) > NAMED else ""
            raise ConfigError(
                f"{folder}: holds another sweep: {'; '.join(differences[:NAMED])}{more}. "
                "Choose another folder, or run the sweep that it holds."
            )
        return there

    @classmethod
    def opened(cls, folder: pathlib.Path) -> Store:
        """The store in a folder that has one.

        Raises:
          ConfigError: if there is none, or its description is damaged.
        """
        path = folder / "made_by.json"
        try:
            table = json.loads(path.read_text())
            if table["made_by"]["format"] != FORMAT:
                raise ConfigError(f"{folder}: was kept by another version of pause_jax.")
            kept = Kept(
                table["made_by"], [Chunking(*each) for each in table["plans"]], table["about"]
            )
            _check_kept(kept)
            return cls(folder, kept)
        except OSError as error:
            raise ConfigError(f"{folder}: holds no kept sweep ({error.strerror}).") from None
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{path}: is damaged ({error}), so what the folder holds cannot be known. Remove "
                "the folder, or choose another one."
            ) from None

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from running the whole sweep, too; the lock of a process that dies
        is free.

        Raises:
          ConfigError: if another process is at work.
        """
        return _locked(self.folder)

    def tidy(self, group: int, first: int) -> None:
        """Delete what a process that died left of writing a chunk."""
        for left in self.folder.glob(f".{self.path(group, first).name}.*"):
            left.unlink(missing_ok=True)

    def remove_damaged(self, group: int, first: int) -> None:
        """Delete a chunk that cannot be read, so that it counts as missing."""
        with contextlib.suppress(OSError):  # a folder that may only be read
            self.path(group, first).unlink()

    def path(self, group: int, first: int) -> pathlib.Path:
        """The file of a chunk, by its group and the number of its first run."""
        return self.folder / f"chunk-{group:03}-{first:07}.npz"

    def checkpoint_path(self, group: int, first: int) -> pathlib.Path:
        """The folder of a chunk in the middle."""
        return self.folder / f"checkpoint-{group:03}-{first:07}"

    def lease_path(self, group: int, first: int) -> pathlib.Path:
        """The file that says who runs a chunk."""
        return self.folder / f"lease-{group:03}-{first:07}"

    def rows(self, group: int, first: int) -> Rows | None:
        """A finished chunk; None if there is none, or a damaged one, and it must run."""
        path = self.path(group, first)
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as saved:
                about = json.loads(str(saved["about"]))
                if about["made_by"] != fingerprint(self.kept.made_by):
                    raise ValueError("a chunk of another sweep")
                values = {name: saved[f"value {name}"] for name in about["names"]}
            return Rows(
                about["number"],
                values,
                about["epsilon_unit"],
                about["num_parameters"],
                tuple(about["unnoised"]),
            )
        except Exception as error:  # whatever a damaged zip file makes of itself
            LOG.warning("%s: is damaged (%s) and runs again.", path, error)
            return None

    def save(self, group: int, first: int, rows: Rows) -> None:
        """Write a finished chunk. A disk that is full is told of once, and the sweep goes on."""
        if self.failed:
            return
        path = self.path(group, first)
        about = {
            "made_by": fingerprint(self.kept.made_by),
            "names": list(rows.values),
            "number": rows.number,
            "epsilon_unit": rows.epsilon_unit,
            "num_parameters": rows.num_parameters,
            "unnoised": list(rows.unnoised),
        }
        arrays: dict[str, Any] = {f"value {name}": value for name, value in rows.values.items()}
        with self.tolerated(), _written_beside(path) as beside:
            with beside.open("wb") as file:
                np.savez(file, about=np.asarray(json.dumps(about)), **arrays)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
            sync_names(self.folder)

    @contextlib.contextmanager
    def tolerated(self) -> Iterator[None]:
        """Outlive what cannot be written: what was computed is not lost for it."""
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


def _check_kept(kept: Kept) -> None:
    """Raise one of the errors of ``Store.opened`` for a description that no sweep wrote."""
    made_by = kept.made_by
    for each in made_by["summaries"]:
        ConfigSummary(**each)
    for each in made_by["recorded"]:
        Variable(**each)
    if not isinstance(kept.about, dict) or not isinstance(made_by["shards"], int):
        raise TypeError("about must be an object, shards a number")
    if made_by["shards"] < 1 or min(min(plan) for plan in kept.plans) < 1:
        raise ValueError("shards and the numbers of plans must be >= 1")
    runs = [len(labels) * len(made_by["keys"]) for labels in made_by["groups"]]
    if runs != [plan.num_runs for plan in kept.plans]:
        raise ValueError("plans must be those of its groups and keys")


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(filelock.FileLock(folder / "lock", blocking=False))
        except filelock.Timeout:
            raise ConfigError(
                f"{folder}: another process runs this sweep. Wait for it, or stop it."
            ) from None
        except (NotImplementedError, OSError) as error:
            LOG.warning("%s: cannot be locked (%s); goes on.", folder, error)
        yield


def store_is_empty(folder: pathlib.Path) -> bool:
    """Whether nothing was finished in a store, and nobody is at work there."""
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
      ConfigError: if another process is at work there.
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


@contextlib.contextmanager
def _written_beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A name of this process's own in the same folder, free again at the end."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _name_first(beside: pathlib.Path, path: pathlib.Path) -> None:
    """Give a file its name unless another process was sooner."""
    try:
        os.link(beside, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        beside.replace(path)
