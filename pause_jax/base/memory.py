"""The machine's memory: more than it holds is refused, as the system would end the program."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax

from pause_jax.base.struct import ConfigError

# Linux's files with the limit of a container.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_bytes() -> int:
    """Return the bytes of memory of this machine, or of its container."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or it says "max"
            limits.append(int(pathlib.Path(path).read_text()))
    return min(limits)


def tree_bytes(tree: Any) -> int:
    """Return the bytes of a pytree's arrays, or of their ``ShapeDtypeStruct``s."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def check_memory(needed: float, what: str, fix: str) -> None:
    """Check that the machine has ``needed`` bytes.

    The message names ``what``, with the values that make it so large, and the ``fix``.
    """
    available = machine_bytes()
    if needed > available:
        raise ConfigError(
            f"{what} takes {needed / 2**30:,.0f} GiB at least, and this machine has "
            f"{available / 2**30:,.0f} GiB. {fix}"
        )


@contextlib.contextmanager
def refused_if_too_large(what: str, fix: str) -> Iterator[None]:
    """Report in one line that memory ran out; ``what`` and ``fix`` as in :func:`check_memory`.

    Raises:
      ConfigError: if JAX could not allocate what it needs.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        needed = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"{what}: more memory is needed than there is ({needed}). {fix}"
        ) from None
