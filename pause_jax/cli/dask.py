"""Option ``--dask``, which runs a sweep on a Dask cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from pause_jax.base.struct import ConfigError
from pause_jax.sweeps.executor import Executor

# Maximum wait for a scheduler, in seconds.
PATIENCE = 20


@contextlib.contextmanager
def dask_executor(text: str) -> Iterator[Executor]:
    """Yield an executor for ``local:N``, or for the address or file of a Dask scheduler."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise ConfigError("--dask: needs Dask, pip install 'pause_jax[cluster]'.") from None
    logging.getLogger("distributed").setLevel(logging.WARNING)
    local = re.fullmatch(r"local:([1-9]\d*)", text)
    is_file = pathlib.Path(text).is_file()
    if not (local or is_file or re.search(r":\d+$", text)):
        raise ConfigError(f"--dask {text}: must be local:N, HOST:PORT or a scheduler's file.")
    with contextlib.ExitStack() as stack:
        where: dict[str, Any] = {"scheduler_file" if is_file else "address": text}
        if local:
            workers = int(local[1])
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=max(1, (os.cpu_count() or 1) // workers),
                dashboard_address="127.0.0.1:0",
            )
            where = {"address": stack.enter_context(cluster)}
        try:
            # Do not set the default client, because xarray would use it to lock files.
            client = stack.enter_context(Client(**where, timeout=PATIENCE, set_as_default=False))
        except (OSError, ValueError) as error:
            raise ConfigError(f"--dask {text}: no scheduler answers there ({error}).") from None
        yield client.get_executor()
