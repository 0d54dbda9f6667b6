"""Tasks whose begin and end are written down, by process: who ran what, and how often."""

import os
import pathlib
import signal
import time
from typing import Any, NamedTuple

import jax

from pause_jax import SimConfig
from pause_jax.policies import named

SMALL = SimConfig(num_clients=6, num_selected=2, num_rounds=20, learning=None, track_regret=False)
CONFIGS = {name: SMALL.replace(policy=named(name)) for name in ("pause", "random")}
SEEDS = 6
SETTINGS = {"max_batch": 1, "record": ("clients", "clock", "counts"), "progress": False}


def keys() -> jax.Array:
    return jax.random.split(jax.random.key(0), SEEDS)


class Event(NamedTuple):
    """What happened to a chunk: ``begin`` or ``end``, and in which process."""

    what: str
    chunk: str
    process: int


def note(folder: pathlib.Path, what: str, chunk: Any) -> None:
    line = f"{what} {'-'.join(map(str, chunk))} {os.getpid()}\n"
    with (folder / "events").open("a") as file:
        file.write(line)


def events(folder: pathlib.Path) -> list[Event]:
    path = folder / "events"
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.split() for line in lines)
    return [Event(what, chunk, int(process)) for what, chunk, process in parts]


def watched(folder, held, dying, function, *arguments):
    """A task that is written down; it kills its process if ``dying`` is its chunk, once.

    If ``held``, no process ends a second chunk before the file ``released`` exists.
    """
    if function.__name__ != "run_task":
        return function(*arguments)
    chunk = arguments[2]
    note(folder, "begin", chunk)
    if chunk == dying and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    answer = function(*arguments)
    ended_one = any(each.what == "end" and each.process == os.getpid() for each in events(folder))
    while held and ended_one and not (folder / "released").exists():
        time.sleep(0.01)
    note(folder, "end", chunk)
    return answer


class Watched(NamedTuple):
    """An executor whose tasks are written down."""

    executor: Any
    folder: pathlib.Path
    held: bool = False
    dying: tuple[int, int] | None = None

    def submit(self, function, /, *arguments):
        return self.executor.submit(
            watched, self.folder, self.held, self.dying, function, *arguments
        )
