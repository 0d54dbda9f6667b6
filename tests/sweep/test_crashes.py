"""A sweep that dies before any of its changes to its folder goes on, with the same bits.

A death is played in this process: from one change on, none reaches the disk any more. So each is
also a disk on which nothing can be written any more, and the sweep must come to its end.
"""

import builtins
import contextlib
import io
import os
import threading
from concurrent.futures import thread as pools

import pytest
import xarray as xr

from pause_jax import ConfigError, merge, run_shard, sweep
from pause_jax.sweep import checkpoint, execute, leases
from tests.support.watched import SMALL, keys

pytestmark = pytest.mark.slow

CONFIGS = {"pause": SMALL}
KEYS = keys()[:2]
SETTINGS = {"max_batch": 1, "progress": False}
# Changes by the path that they name first; those of an open file follow.
BY_PATH = (
    *("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink"),
    *("utime", "chmod", "truncate"),
)
BY_HANDLE = ("write", "fsync", "ftruncate", "fchmod")


class Disk:
    """Changes to a folder, in their order, of which all fail from number ``dies_at`` on."""

    def __init__(self, folder, dies_at=None):
        self.folder, self.dies_at = str(folder), dies_at
        self.changes, self.dead, self.handles = [], False, set()
        self._lock = threading.Lock()

    def change(self, what):
        with self._lock:
            self.dead |= len(self.changes) == self.dies_at
            if self.dead:
                raise OSError(f"dead before {what}")
            self.changes.append(what)

    def holds(self, path):
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.folder)

    @contextlib.contextmanager
    def watched(self):
        with pytest.MonkeyPatch.context() as patch:
            for name in BY_PATH:
                patch.setattr(os, name, self._by_path(name, getattr(os, name)))
            for name in BY_HANDLE:
                patch.setattr(os, name, self._by_handle(name, getattr(os, name)))
            patch.setattr(os, "open", self._os_open(os.open))
            opened = self._opened(builtins.open)
            patch.setattr(builtins, "open", opened)
            patch.setattr(io, "open", opened)
            yield self

    def _by_path(self, name, function):
        def changed(path, *rest, **options):
            if self.holds(path):
                self.change(f"{name} {os.path.basename(path)}")
            return function(path, *rest, **options)

        return changed

    def _by_handle(self, name, function):
        def changed(handle, *rest):
            if handle in self.handles:
                self.change(f"{name} {handle}")
            return function(handle, *rest)

        return changed

    def _os_open(self, function):
        def opened(path, flags, *rest, **options):
            writes = flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
            if writes and self.holds(path):
                self.change(f"open {os.path.basename(path)}")
            handle = function(path, flags, *rest, **options)
            (self.handles.add if writes and self.holds(path) else self.handles.discard)(handle)
            return handle

        return opened

    def _opened(self, function):
        def opened(file, mode="r", *rest, **options):
            if not set("wax+") & set(mode) or not self.holds(file):
                return function(file, mode, *rest, **options)
            self.change(f"open {os.path.basename(file)}")
            found = function(file, mode, *rest, **options)
            try:
                self.change(f"write {os.path.basename(file)}")  # what is opened is empty first
            except OSError:
                found.close()
                raise
            return found

        return opened


def as_a_sweep(folder, keys):
    return sweep(CONFIGS, keys, store=folder, **SETTINGS).drop_attrs()


def as_a_shard(folder, keys):
    run_shard(CONFIGS, keys, (1, 2), store=folder, **SETTINGS)
    return merge(folder).drop_attrs()


def waiting():
    """Threads for which the process waits at its end, but those of pools, which are told to end."""
    told = set(pools._threads_queues)
    return [each for each in threading.enumerate() if not each.daemon and each not in told]


@pytest.mark.parametrize(
    ("play", "chunks", "saves", "least"),
    [(as_a_sweep, 2, False, 15), (as_a_shard, 2, False, 21), (as_a_sweep, 1, True, 25)],
    ids=["a sweep", "a shard", "the middle of a chunk"],
)
def test_a_death_before_any_change_of_the_folder_loses_nothing(
    play, chunks, saves, least, tmp_path, monkeypatch
):
    if saves:
        monkeypatch.setattr(checkpoint, "SAVE_EVERY", 0.0)
        monkeypatch.setattr(checkpoint, "SHARE", 1.0)
    # The process of a lease is this one, which lives on.
    monkeypatch.setattr(leases, "EXPIRES", 0.1)
    monkeypatch.setattr(leases, "UNWRITTEN", 0.1)
    monkeypatch.setattr(execute, "LOOK_EVERY", 0.02)
    keys = KEYS[:chunks]
    with Disk(tmp_path / "whole").watched() as disk:
        whole = play(tmp_path / "whole", keys)
    assert len(disk.changes) >= least
    before = len(waiting())
    for number, change in enumerate(disk.changes):
        folder = tmp_path / str(number)
        with Disk(folder, number).watched() as dying, contextlib.suppress(ConfigError):
            play(folder, keys)
        assert dying.dead, change
        assert len(waiting()) == before, f"dead before {change}, it would not end"
        xr.testing.assert_identical(play(folder, keys), whole)
