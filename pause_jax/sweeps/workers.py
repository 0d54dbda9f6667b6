"""Chunks of a sweep as tasks of an executor: Dask, submitit, a pool of processes.

A task is plain: the pickled arguments of the sweep, and which chunk to run. A worker prepares the
sweep once, refuses if its code, versions or processor are others, and runs the chunk as a sweep in
one process does. So who runs a chunk changes no bit.
"""

from __future__ import annotations

import functools
import pickle
import platform
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
from jax import Array

from pause_jax.base.struct import ConfigError
from pause_jax.sweeps.batch import run_chunks
from pause_jax.sweeps.chunks import Chunking
from pause_jax.sweeps.config_summary import Rows, rows_of
from pause_jax.sweeps.prepare import SweepPlan, plan_sweep
from pause_jax.sweeps.provenance import different, fingerprint
from pause_jax.sweeps.store import NAMED

# A task whose worker died is submitted so many times. (Dask itself runs it again, too.)
ATTEMPTS = 3
# Seconds between two looks at jobs that do not report by themselves, as those of submitit.
LOOK_EVERY = 0.2
# What a client may have otherwise than its workers: it runs nothing.
_PROCESSOR = ("platform", "device", "devices")


class Executor(Protocol):
    """What runs tasks: a ``concurrent.futures.Executor``, or another class with its ``submit``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Return what has ``done()``, ``result()`` and ``cancel()``."""


class Task(NamedTuple):
    """A chunk to run.

    Attributes:
      arguments: of the sweep, packed.
      made_by: fingerprint of what the worker must have.
      group, first: of the chunk.
      chunking: of its group.
    """

    arguments: bytes
    made_by: str
    group: int
    first: int
    chunking: Chunking


class Failure(NamedTuple):
    """A task that a worker could not run.

    Attributes:
      worker: its name.
      words: why, empty if the worker is another than the first.
      made_by: what the worker has, if it is another.
    """

    worker: str
    words: str
    made_by: dict[str, Any] | None = None


class Workers:
    """The workers of an executor, for one sweep."""

    def __init__(self, executor: Executor, configs: Any, keys: Array, arguments: Mapping[str, Any]):
        self._executor = executor
        self._arguments = packed(configs, keys, arguments)

    def planned(self, plan: SweepPlan) -> SweepPlan:
        """The plan for the workers' processor, which need not be that of this process.

        Args:
          plan: for this process.

        Raises:
          ConfigError: if the first worker has other code or versions, or cannot prepare the sweep.
        """
        ((_, found),) = _results(self._executor, prepare_task, {(): (self._arguments,)})
        if isinstance(found, Failure):
            raise ConfigError(f"the worker on {found.worker} cannot run the sweep: {found.words}")
        worker, made_by, plans = found
        processor = {name: made_by["machine"][name] for name in _PROCESSOR}
        here = plan.made_by | {"machine": plan.made_by["machine"] | processor}
        if difference := _difference(worker, here, made_by):
            raise ConfigError(difference)
        return plan._replace(made_by=made_by, plans=plans)

    def run(
        self,
        made_by: Mapping[str, Any],
        plans: Sequence[Chunking],
        chunks: Iterable[tuple[int, int]],
    ) -> Iterator[tuple[tuple[int, int], Rows]]:
        """Run chunks, and yield each when it is finished.

        Raises:
          RuntimeError: if a chunk failed, a worker is another than the first, or died every time.
        """
        known = fingerprint(made_by)
        tasks = {
            (group, first): (Task(self._arguments, known, group, first, plans[group]),)
            for group, first in chunks
        }
        for chunk, found in _results(self._executor, run_task, tasks):
            if isinstance(found, Failure):
                other = found.made_by and _difference(found.worker, made_by, found.made_by)
                raise RuntimeError(other or f"the worker on {found.worker}: {found.words}")
            yield chunk, found


def prepare_task(arguments: bytes) -> tuple[str, dict[str, Any], list[Chunking]] | Failure:
    """In a worker: what it has, and how it cuts the sweep into chunks."""
    try:
        plan = _plan(arguments)
    except Exception as error:
        return _failure(error)
    return platform.node(), plan.made_by, plan.plans


def run_task(task: Task) -> Rows | Failure:
    """In a worker: run a chunk."""
    try:
        plan = _plan(task.arguments)
        if fingerprint(plan.made_by) != task.made_by:
            return Failure(platform.node(), "", plan.made_by)
        batch = plan.batch(task.group, task.chunking._replace(threads=1))
        ((_, result),) = run_chunks(batch, lambda: None, [task.first])
        return rows_of(result)
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> Failure:
    """An error in words: its class may need packages that only the worker has."""
    return Failure(platform.node(), f"{type(error).__name__}: {error}")


def packed(configs: Any, keys: Array, arguments: Mapping[str, Any]) -> bytes:
    """The arguments of a sweep; with cloudpickle also classes and functions of a script."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    keys_as_data = jax.device_get(jax.random.key_data(keys)), str(jax.random.key_impl(keys))
    try:
        content = pickler.dumps((configs, keys_as_data, dict(arguments)))
    except Exception as error:  # whatever an object makes of being pickled
        advice = "" if pickler is not pickle else " Install cloudpickle: pip install cloudpickle."
        raise ConfigError(
            f"executor: the sweep cannot be sent to workers ({type(error).__name__}: {error})."
            f"{advice}"
        ) from error
    return zlib.compress(content, level=1)


_PREPARING = threading.Lock()


def _plan(arguments: bytes) -> SweepPlan:
    """The sweep, prepared once in a process."""
    with _PREPARING:  # the tasks of a worker may run in several threads
        return _prepared(arguments)


@functools.lru_cache(maxsize=1)
def _prepared(arguments: bytes) -> SweepPlan:
    configs, (key_data, impl), others = pickle.loads(zlib.decompress(arguments))
    return plan_sweep(configs, jax.random.wrap_key_data(key_data, impl=impl), **others)


def _difference(worker: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """In what a worker is another than expected, in a line; empty if it is not."""
    words = different(expected, found)
    return (
        f"the worker on {worker} is another: {'; '.join(words[:NAMED])}. Give all workers the same "
        "code, versions and kind of processor."
        if words
        else ""
    )


def _results(
    executor: Executor, function: Callable[..., Any], tasks: Mapping[Any, tuple[Any, ...]]
) -> Iterator[tuple[Any, Any]]:
    """Yield (name, result) of each task when it is finished; run those again whose worker died.

    Raises:
      RuntimeError: if a worker died each time.
    """
    finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
    running: dict[Any, Any] = {}
    attempts = dict.fromkeys(tasks, 0)

    def submit(name: Any) -> None:
        attempts[name] += 1
        task = executor.submit(function, *tasks[name])
        running[task] = name
        if hasattr(task, "add_done_callback"):
            task.add_done_callback(finished.put)

    try:
        for name in tasks:
            submit(name)
        while running:
            task = _finished(running, finished)
            name = running.pop(task)
            try:
                found = task.result()
            except Exception as error:  # of the executor: a task returns its own
                if attempts[name] == ATTEMPTS:
                    raise RuntimeError(f"a worker failed: {error!r}") from error
                submit(name)
            else:
                # As long as someone holds a task, Dask runs it again if its worker dies later.
                del task
                yield name, found
    finally:
        for task in running:
            task.cancel()


def _finished(running: Mapping[Any, Any], finished: queue.SimpleQueue[Any]) -> Any:
    """Wait for a task that is finished; those that do not say so are asked."""
    if hasattr(next(iter(running)), "add_done_callback"):
        return finished.get()
    while True:
        for task in running:
            if task.done():
                return task
        time.sleep(LOOK_EVERY)
