"""Memory checks that raise an error before the operating system kills the process."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax

from pause_jax.base.struct import ConfigError

# Linux files that contain a container's memory limit (cgroup v2 and v1).
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_bytes() -> int:
    """Return the total memory of this machine or container, in bytes."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # missing file, or "max" for no limit
            limits.append(int(pathlib.Path(path).read_text()))
    return min(limits)


def tree_bytes(tree: Any) -> int:
    """Return the size in bytes of a pytree of arrays or ``ShapeDtypeStruct`` leaves."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def check_memory(needed: float, what: str, fix: str) -> None:
    """Raise ConfigError if ``needed`` bytes exceed the machine's memory.

    ``what`` names the object and the values that determine its size. The message ends with ``fix``.
    """
    available = machine_bytes()
    if needed > available:
        raise ConfigError(
            f"{what} needs at least {needed / 2**30:,.0f} GiB, but this machine has "
            f"{available / 2**30:,.0f} GiB. {fix}"
        )


@contextlib.contextmanager
def refused_if_too_large(what: str, fix: str) -> Iterator[None]:
    """Convert an out-of-memory error from JAX to a one-line ConfigError.

    ``what`` and ``fix`` are the same as in :func:`check_memory`.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        needed = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{what}: out of memory ({needed}). {fix}") from None
