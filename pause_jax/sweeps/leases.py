"""Leases: which process runs which chunk, where several processes share a folder."""

from __future__ import annotations

import logging
import pathlib
import time

import filelock

_LOG = logging.getLogger("pause_jax")
# Seconds without a sign of life after which a process of another machine counts as dead. Of this
# machine it counts as dead when it is. All processes that share a folder must agree on it.
EXPIRES = 30.0
# Seconds for which a lease may be empty: between its process's making it and writing it.
UNWRITTEN = 2.0


class Leases:
    """The leases of this process: files that it touches for as long as it lives.

    A lease spares work and is no lock: a process that was suspended for longer than ``EXPIRES`` and
    goes on may run what another one runs, too. Both then write the same bits.
    """

    def __init__(self) -> None:
        # Kept also where another process was sooner: for how long its file did not change counts.
        self._leases: dict[pathlib.Path, filelock.SoftFileLease] = {}
        # When an empty file was first seen, by its path and its times.
        self._empty: dict[tuple[pathlib.Path, int, int], float] = {}

    def claim(self, path: pathlib.Path) -> bool:
        """Take the lease in the file ``path``, unless a living process holds it."""
        lease = self._leases.get(path)
        if lease is None:
            lease = filelock.SoftFileLease(path, lease_duration=EXPIRES, thread_local=False)
            self._leases[path] = lease
        if lease.is_locked:
            return True
        try:
            lease.acquire(blocking=False)
        except filelock.Timeout:
            if not self._abandoned(path):
                return False
            path.unlink(missing_ok=True)
            return self.claim(path)
        except (NotImplementedError, OSError) as error:  # a full disk, a folder that is gone
            _LOG.warning("%s: cannot be written (%s); goes on.", path, error)
        return True

    def _abandoned(self, path: pathlib.Path) -> bool:
        """Whether a lease stays empty: its process died as it made it. filelock never takes it, as
        it may be an older version's, which wrote nothing.
        """
        try:
            found = path.stat()
        except OSError:
            return False
        if found.st_size:
            return False
        now = time.monotonic()
        since = self._empty.setdefault((path, found.st_ino, found.st_ctime_ns), now)
        return now - since >= UNWRITTEN

    def release(self, path: pathlib.Path) -> None:
        """Release a lease, if this process holds it."""
        lease = self._leases.pop(path, None)
        if lease is not None:
            lease.release()

    def close(self) -> None:
        """Release all leases."""
        for path in list(self._leases):
            self.release(path)
