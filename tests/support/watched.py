"""Chunks whose begin and end are written down, by process: who ran what, when, and how often.

    python -m tests.support.watched FOLDER NUMBER/SHARDS SECONDS [DYING]

Runs a shard in FOLDER/kept, SECONDS longer at each chunk; DYING: kills itself in its so manieth
chunk.
"""

import os
import pathlib
import signal
import sys
import time
from typing import Any, NamedTuple

import jax

from pause_jax import SimConfig, run_shard
from pause_jax.base.compilation import use_cache
from pause_jax.policies import named
from pause_jax.sweeps import execute

SMALL = SimConfig(num_clients=6, num_selected=2, num_rounds=20, learning=None, track_regret=False)
CONFIGS = {name: SMALL.replace(policy=named(name)) for name in ("pause", "random")}
SEEDS = 6
SETTINGS = {"max_batch": 1, "record": ("clients", "clock", "counts"), "progress": False}


def keys() -> jax.Array:
    return jax.random.split(jax.random.key(0), SEEDS)


class Event(NamedTuple):
    """What happened to a chunk: ``begin`` or ``end``, when and in which process."""

    what: str
    chunk: str
    process: int
    seconds: float


def note(folder: pathlib.Path, what: str, chunk: Any) -> None:
    line = f"{what} {'-'.join(map(str, chunk))} {os.getpid()} {time.time()}\n"
    with (folder / "events").open("a") as file:
        file.write(line)


def events(folder: pathlib.Path) -> list[Event]:
    path = folder / "events"
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.split() for line in lines)
    return [Event(what, chunk, int(own), float(when)) for what, chunk, own, when in parts]


def watched(folder, seconds, dying, function, *arguments):
    """A task that is written down; it kills its process if ``dying`` is its chunk, once."""
    chunk = arguments[0][2:4]  # of a Task; of other tasks bytes
    if function.__name__ != "run_task":
        return function(*arguments)
    note(folder, "begin", chunk)
    if chunk == dying and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    found = function(*arguments)
    time.sleep(seconds)
    note(folder, "end", chunk)
    return found


class Watched(NamedTuple):
    """An executor whose tasks are written down."""

    executor: Any
    folder: pathlib.Path
    seconds: float = 0.0
    dying: tuple[int, int] | None = None

    def submit(self, function, /, *arguments):
        return self.executor.submit(
            watched, self.folder, self.seconds, self.dying, function, *arguments
        )


def main(folder: pathlib.Path, shard: tuple[int, int], seconds: float, dying: int) -> None:
    use_cache()
    keeper = execute._Keeper
    claimed, finished = keeper.claimed, keeper.finished
    begun: list[int] = []

    def begin(self, first):
        if not begun:  # together with the others that were started with it
            (folder / f"ready-{os.getpid()}").touch()
            while len(list(folder.glob("ready-*"))) < 3:
                time.sleep(0.01)
        if not claimed(self, first):
            return False
        begun.append(first)
        note(folder, "begin", (self._group, first))
        if len(begun) == dying:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def end(self, first, result):
        time.sleep(seconds)
        finished(self, first, result)
        note(folder, "end", (self._group, first))

    keeper.claimed, keeper.finished = begin, end  # type: ignore[method-assign]
    share = run_shard(CONFIGS, keys(), shard, store=folder / "kept", **SETTINGS)
    print(share.chunks, share.open, flush=True)


if __name__ == "__main__":
    place, which, longer, *rest = sys.argv[1:]
    number, shards = map(int, which.split("/"))
    main(pathlib.Path(place), (number, shards), float(longer), int(rest[0]) if rest else 0)
