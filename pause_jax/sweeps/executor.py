"""Chunks of a sweep as tasks of an executor: Dask, submitit, a pool of processes.

A task is plain: the pickled arguments of the sweep, and which chunk to run. A worker prepares the
sweep once, refuses if its code, versions or processor are others, and runs the chunk as a sweep in
one process does. So who runs a chunk changes no bit.
"""

from __future__ import annotations

import functools
import pickle
import platform
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
from jax import Array

from pause_jax.base.stopping import as_completed
from pause_jax.base.struct import ConfigError
from pause_jax.sweeps import provenance
from pause_jax.sweeps.batch import run_chunks
from pause_jax.sweeps.labels import Rows
from pause_jax.sweeps.plan import Chunk, Chunking, SweepPlan, plan_sweep
from pause_jax.sweeps.store import NAMED

# Times that a task is submitted whose worker dies. (Dask itself runs it again, too.)
ATTEMPTS = 3


class Executor(Protocol):
    """What runs tasks: a ``concurrent.futures.Executor``, or another class with its ``submit``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Return a ``Future``, or an object with its ``done()``, ``result()`` and ``cancel()``."""


class Task(NamedTuple):
    """A chunk to run, with the packed arguments of its sweep and what the worker must have."""

    arguments: bytes
    made_by: dict[str, Any]
    chunk: Chunk
    chunking: Chunking


class Workers:
    """The workers of an executor, for one sweep."""

    def __init__(self, executor: Executor, configs: Any, keys: Array, arguments: Mapping[str, Any]):
        self._executor = executor
        self._arguments = packed(configs, keys, arguments)

    def planned(self, plan: SweepPlan) -> SweepPlan:
        """Return the plan for the workers' processor, which need not be that of this process.

        Raises:
          ConfigError: if the first worker has other code or versions, or cannot prepare the sweep.
        """
        task = self._arguments, plan.made_by
        ((_, answer),) = _results(self._executor, prepare_task, {(): task})
        if isinstance(answer, str):
            raise ConfigError(answer)
        made_by, chunkings = answer
        return plan._replace(made_by=made_by, chunkings=chunkings)

    def run(self, plan: SweepPlan, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, Rows]]:
        """Run chunks, and yield each when it is finished.

        Raises:
          RuntimeError: if a chunk failed, a worker is another than the first, or died every time.
        """
        tasks = {
            chunk: (Task(self._arguments, plan.made_by, chunk, plan.chunkings[chunk.group]),)
            for chunk in chunks
        }
        for chunk, answer in _results(self._executor, run_task, tasks):
            if isinstance(answer, str):
                raise RuntimeError(answer)
            yield chunk, answer


def prepare_task(
    arguments: bytes, made_by: dict[str, Any]
) -> tuple[dict[str, Any], list[Chunking]] | str:
    """In a worker: return what it has, and how it cuts the sweep into chunks; or why it cannot."""
    try:
        plan = _plan(arguments)
    except Exception as error:
        return _failure(error)
    # A client may have another processor than its workers: it runs nothing.
    names = provenance.machine(plan.mesh.devices.flat)
    expected = made_by | {name: plan.made_by[name] for name in names}
    return _difference(expected, plan.made_by) or (plan.made_by, plan.chunkings)


def run_task(task: Task) -> Rows | str:
    """In a worker: run a chunk; or return why it cannot."""
    try:
        plan = _plan(task.arguments)
        if difference := _difference(task.made_by, plan.made_by):
            return difference
        chunkings = list(plan.chunkings)
        chunkings[task.chunk.group] = task.chunking._replace(threads=1)
        plan = plan._replace(chunkings=chunkings)
        ((_, rows),) = run_chunks(plan, [task.chunk], lambda segments: None)
    except Exception as error:
        return _failure(error)
    return rows


def _failure(error: Exception) -> str:
    """Put an error in words: its class may need packages that only the worker has."""
    return f"the worker on {platform.node()}: {type(error).__name__}: {error}"


def _difference(expected: Mapping[str, Any], made_by: Mapping[str, Any]) -> str:
    """Say in a line how this worker differs from what is expected; empty if it does not."""
    words = provenance.different(expected, made_by)
    if not words:
        return ""
    return (
        f"the worker on {platform.node()} is another: {'; '.join(words[:NAMED])}. Give all workers "
        "the same code, versions and kind of processor."
    )


def packed(configs: Any, keys: Array, arguments: Mapping[str, Any]) -> bytes:
    """Pack the arguments of a sweep; with cloudpickle also classes and functions of a script."""
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
    """Prepare the sweep, once in a process."""
    with _PREPARING:  # the tasks of a worker may run in several threads
        return _prepared(arguments)


@functools.lru_cache(maxsize=1)
def _prepared(arguments: bytes) -> SweepPlan:
    configs, (key_data, impl), others = pickle.loads(zlib.decompress(arguments))
    return plan_sweep(configs, jax.random.wrap_key_data(key_data, impl=impl), **others)


def _results(
    executor: Executor, function: Callable[..., Any], tasks: Mapping[Any, tuple[Any, ...]]
) -> Iterator[tuple[Any, Any]]:
    """Yield (name, result) of each task when it is finished.

    Tasks whose worker died run again after the others.

    Raises:
      RuntimeError: if a worker died each time.
    """
    for attempt in range(1, ATTEMPTS + 1):
        names = {executor.submit(function, *task): name for name, task in tasks.items()}
        failed = []
        try:
            for future in as_completed(names):
                name = names.pop(future)
                try:
                    result = future.result()
                except Exception as error:  # of the executor: a task returns its own
                    if attempt == ATTEMPTS:
                        raise RuntimeError(f"a worker failed: {error!r}") from error
                    failed.append(name)
                    continue
                # As long as someone holds a task, Dask runs it again if its worker dies later.
                del future
                yield name, result
        finally:
            for future in names:
                future.cancel()
        tasks = {name: tasks[name] for name in failed}
