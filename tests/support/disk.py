"""A death at a chosen change of a folder, played in this process."""

import builtins
import contextlib
import io
import os
import threading

import pytest

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
            self.handles.add(found.fileno())
            try:
                self.change(f"write {os.path.basename(file)}")  # what is opened is empty first
            except OSError:
                found.close()
                raise
            return found

        return opened
