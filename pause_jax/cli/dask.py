"""``--dask``: a cluster of Dask's as the executor of a sweep."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

from pause_jax.base.struct import ConfigError
from pause_jax.sweep.workers import Executor

# Seconds to wait for a scheduler.
PATIENCE = 20


@contextlib.contextmanager
def dask_executor(text: str) -> Iterator[Executor]:
    """The executor of ``--dask``.

    Args:
      text: ``local:N`` for N processes of this machine; or a scheduler: its address, or its file.

    Raises:
      ConfigError: if Dask is missing, or there is no such scheduler.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise ConfigError("--dask: needs Dask, pip install 'pause_jax[cluster]'.") from None
    with contextlib.ExitStack() as stack:
        if match := re.fullmatch(r"local:([1-9]\d*)", text):
            workers = int(match[1])
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=max(1, (os.cpu_count() or 1) // workers),
                dashboard_address=None,
            )
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        elif not (pathlib.Path(text).is_file() or re.search(r":\d+$", text)):
            raise ConfigError(f"--dask {text}: must be local:N, HOST:PORT or a scheduler's file.")
        else:
            where = {"scheduler_file": text} if pathlib.Path(text).is_file() else {"address": text}
            try:
                client = stack.enter_context(Client(**where, timeout=PATIENCE))
            except (OSError, ValueError) as error:
                raise ConfigError(f"--dask {text}: no scheduler answers there ({error}).") from None
        yield client.get_executor()
