"""Several processes, on one machine or many, that run one sweep: JAX's own distributed runtime."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from typing import NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from pause_jax.base.struct import ConfigError

# Seconds without a sign of life after which a process counts as dead. While it lives it answers
# from a thread of its own, however long a computation takes.
HEARTBEAT = 30


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = 300,
) -> None:
    """Join a program of several processes; before any other use of JAX.

    After it ``jax.devices()`` are the devices of all processes, and ``sweep``, called with the same
    arguments in each, spreads its runs over them.

    Args:
      coordinator: HOST:PORT of process 0, reachable from all. With none of the three, JAX asks
        the cluster (SLURM, Open MPI, TPU pods, Kubernetes).
      num_processes: how many there are.
      process_id: of this one, from 0.
      timeout: seconds to wait for the others.

    Raises:
      ConfigError: for values that cannot be, or if the processes do not find each other.
    """
    given = (coordinator, num_processes, process_id)
    if any(value is None for value in given) and any(value is not None for value in given):
        raise ConfigError(
            f"coordinator = {coordinator}, num_processes = {num_processes}, process_id = "
            f"{process_id}: give all three, or none of them where the cluster knows (SLURM, MPI)."
        )
    if coordinator is not None and not re.fullmatch(r"\S+:\d{1,5}", coordinator):
        raise ConfigError(
            f"coordinator = {coordinator}: must be HOST:PORT of process 0, such as 10.0.0.1:1234."
        )
    if num_processes is not None and process_id is not None:
        if num_processes < 1:
            raise ConfigError(f"num_processes = {num_processes}: must be >= 1.")
        if not 0 <= process_id < num_processes:
            raise ConfigError(
                f"process_id = {process_id}: must be >= 0 and < num_processes = {num_processes}."
            )
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=timeout,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=timeout,
        )
    except (RuntimeError, ValueError) as error:
        if coordinator is None:
            raise ConfigError(
                f"no cluster that JAX knows (SLURM, Open MPI, ...) is here ({error}): give "
                "coordinator, num_processes and process_id."
            ) from error
        raise ConfigError(
            f"coordinator = {coordinator}: the processes did not find each other ({error}). "
            "Process 0 must run at that address, and all must be started within "
            f"{timeout} s with the same number of processes."
        ) from error


def check_same(what: str, otherwise: str = "") -> None:
    """Compare a text across processes: none may run its part of another sweep.

    Args:
      what: the text.
      otherwise: what two processes do that have different ones, for the message.

    Raises:
      ConfigError: if not all have the same.
    """
    digest = np.frombuffer(hashlib.sha256(what.encode()).digest(), np.uint8)
    all_of_them = multihost_utils.process_allgather(digest)
    other = np.flatnonzero((all_of_them != digest).any(axis=1))
    if other.size:
        raise ConfigError(
            f"process {jax.process_index()} and process {other[0]} "
            + (
                otherwise
                or "were started with different commands, configs, seeds or versions: start the "
                "same command in each, with its own process id."
            )
        )


def is_first() -> bool:
    """Whether this process prints and writes what all of them computed."""
    return jax.process_index() == 0


def leave(status: int) -> NoReturn:
    """End this process after another one died: JAX's own end would wait for the dead one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
