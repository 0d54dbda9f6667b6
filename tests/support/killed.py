"""A small sweep in a process of its own, which is killed at a given moment.

    python -m tests.support.killed FOLDER [SECONDS]

Keeps in FOLDER; ends by SIGKILL when it has run for so many seconds (0: never). Prints how many it
ran, and writes the result to FOLDER.nc.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import xarray as xr

from pause_jax import SimConfig, sweep
from pause_jax.learning import Digits, FedAdam, Learning, Mlp
from pause_jax.policies import named
from pause_jax.sweeps import batch, execute, store

ROOT = pathlib.Path(__file__).parents[2]

SMALL = SimConfig(
    num_clients=6,
    num_selected=2,
    num_rounds=40,
    eval_every=10,
    # About every second update is late and averaged in the next round, by a server with moments.
    deadline=0.3,
    stale_updates="next",
    learning=Learning(
        data=Digits(num_train=60), model=Mlp(hidden=()), server=FedAdam(), keep_optimizer_state=True
    ),
)
# Each is a program that every process traces anew.
CONFIGS = {
    "pause": SMALL.replace(policy=named("pause"), track_regret=False),
    "bandit": SMALL.replace(
        policy=named("random"), learning=None, num_rounds=400, track_regret=False
    ),
}
KEYS = 4
MAX_BATCH = 2


def environment(cache: pathlib.Path) -> dict[str, str]:
    """Of the processes: compiled programs in a folder, so that only the first compiles."""
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "COLUMNS": "200",
    }


def run_killed(folder: pathlib.Path, settings: dict[str, str], seconds: float = 0.0) -> float:
    """Run this file's sweep in a process, to its end if ``seconds`` is 0.

    Returns:
      How many seconds it ran, 0 if it was killed.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.killed", str(folder), str(seconds)],
        cwd=ROOT,
        env=settings,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if ran.returncode == -signal.SIGKILL:
        return 0.0
    assert ran.returncode == 0, ran.stderr[-3000:]
    return float(ran.stdout)


def same_bits(one: xr.Dataset, other: xr.Dataset) -> None:
    """Compare two results, NaN with NaN.

    Raises:
      AssertionError: if a bit differs.
    """
    assert one.attrs == other.attrs
    assert set(one.variables) == set(other.variables)
    for name in one.variables:
        np.testing.assert_array_equal(one[name].values, other[name].values, str(name))


def main(folder: str, seconds: float) -> None:
    store.SAVE_EVERY = 0.0
    original = batch.run_chunks
    begun: list[float] = []

    def timed(*arguments):
        if not begun:
            begun.append(time.perf_counter())
            if seconds:
                threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return original(*arguments)

    execute.run_chunks = timed  # type: ignore[attr-defined]
    import jax  # after pause_jax

    keys = jax.random.split(jax.random.key(0), KEYS)
    result = sweep(CONFIGS, keys, store=folder, max_batch=MAX_BATCH, progress=False)
    result.to_netcdf(f"{folder}.nc")
    print(time.perf_counter() - begun[0] if begun else 0.0, flush=True)
    os._exit(0)  # a timer that is left does not matter


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
