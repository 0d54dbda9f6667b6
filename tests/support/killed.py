"""A small sweep in a process of its own, which is killed at a given moment.

    python -m tests.support.killed FOLDER [SECONDS [NUMBER/SHARDS | PROCESS@HOST:PORT]]

Keeps in FOLDER; ends by SIGKILL when it has run for so many seconds (0: never). Prints how many it
ran, and writes the result to FOLDER.nc if it runs everything. PROCESS (0 or 1) is one of two that
run the sweep together, and ends with status 1 if the other one dies.
"""

import os
import signal
import sys
import threading
import time

from pause_jax import SimConfig, SweepInterrupted, run_shard, sweep
from pause_jax.base.compilation import use_cache
from pause_jax.learning import Digits, FedAdam, Learning, Mlp
from pause_jax.policies import named
from pause_jax.sweeps import batch, checkpoint, distributed, execute

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
# On two cores or more each run is a chunk, so shards are cut as the whole is: rounding tells.
MAX_BATCH = 2


def main(folder: str, seconds: float, part: str) -> None:
    use_cache()
    process, together, address = part.partition("@")
    if together:
        distributed.start(address, 2, int(process))
    checkpoint.SAVE_EVERY, checkpoint.SHARE = 0.0, 1.0
    original = batch.run_chunks
    begun: list[float] = []

    def watched(*arguments):
        if not begun:
            begun.append(time.perf_counter())
            if seconds:
                threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return original(*arguments)

    execute.run_chunks = watched  # type: ignore[attr-defined]
    import jax  # after pause_jax

    keys = jax.random.split(jax.random.key(0), KEYS)
    settings = {"store": folder, "max_batch": MAX_BATCH, "progress": False}
    if "/" in part:
        number, shards = map(int, part.split("/"))
        run_shard(CONFIGS, keys, (number, shards), **settings)
    else:
        try:
            whole = sweep(CONFIGS, keys, **settings)
        except SweepInterrupted:
            distributed.leave(1)
        if distributed.is_first():
            whole.to_netcdf(f"{folder}.nc")
    print(time.perf_counter() - begun[0] if begun else 0.0, flush=True)
    os._exit(0)  # a timer that is left does not matter


if __name__ == "__main__":
    own, moment, which = [*sys.argv[1:], *("0", "")[len(sys.argv) - 2 :]]
    main(own, float(moment), which)
