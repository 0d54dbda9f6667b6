"""Execution of sweep chunks by an executor, such as Dask, submitit or a process pool.

A task contains the sweep's pickled arguments and the chunk to run. Each worker prepares the sweep
once. A worker rejects tasks if its code, package versions or devices differ from those of the first
worker. Results are therefore bit-identical if all workers have identical processors.
"""

from __future__ import annotations

import functools
import pickle
import platform
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import jax
from jax import Array

from pause_jax.base.stopping import as_completed
from pause_jax.base.struct import ConfigError
from pause_jax.sweeps import provenance
from pause_jax.sweeps.batch import run_chunks
from pause_jax.sweeps.labels import Rows
from pause_jax.sweeps.plan import Chunk, Chunking, SweepPlan, plan_sweep
from pause_jax.sweeps.store import NAMED

# Maximum number of attempts to run a task if its workers die, in addition to Dask's own retries.
ATTEMPTS = 3


class Executor(Protocol):
    """Protocol for ``concurrent.futures.Executor`` and classes with a compatible ``submit``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Submit a call, and return a future with ``done()``, ``result()`` and ``cancel()``."""


class Workers:
    """Executor workers that run the chunks of one sweep."""

    def __init__(self, executor: Executor, configs: Any, keys: Array, arguments: Mapping[str, Any]):
        self._executor = executor
        self._arguments = packed(configs, keys, arguments)

    def planned(self, plan: SweepPlan) -> SweepPlan:
        """Return the plan for the workers' processors, which may differ from the local processor.

        Raises:
          ConfigError: if preparation fails, or if the first worker's code or package versions
            differ from those of this process.
        """
        task = self._arguments, plan.made_by
        ((_, answer),) = _results(self._executor, prepare_task, {(): task})
        if isinstance(answer, str):
            raise ConfigError(answer)
        made_by, chunkings = answer
        return plan._replace(made_by=made_by, chunkings=chunkings)

    def run(self, plan: SweepPlan, chunks: Iterable[Chunk]) -> Iterator[tuple[Chunk, Rows]]:
        """Run chunks, and yield each chunk with its rows when it finishes.

        Raises:
          RuntimeError: if a chunk fails, a worker's environment differs, or workers die too often.
        """
        tasks = {
            chunk: (self._arguments, plan.made_by, chunk, plan.chunkings[chunk.group])
            for chunk in chunks
        }
        for chunk, answer in _results(self._executor, run_task, tasks):
            if isinstance(answer, str):
                raise RuntimeError(answer)
            yield chunk, answer


def prepare_task(
    arguments: bytes, made_by: dict[str, Any]
) -> tuple[dict[str, Any], list[Chunking]] | str:
    """Return this worker's (environment, chunkings), or an error message."""
    try:
        plan = _plan(arguments)
    except Exception as error:
        return _failure(error)
    # The submitting process runs no chunks, so it may use a different processor than the workers.
    names = provenance.machine(plan.mesh.devices.flat)
    expected = made_by | {name: plan.made_by[name] for name in names}
    return _difference(expected, plan.made_by) or (plan.made_by, plan.chunkings)


def run_task(
    arguments: bytes, made_by: dict[str, Any], chunk: Chunk, chunking: Chunking
) -> Rows | str:
    """Run a chunk in this worker, and return its rows or an error message."""
    try:
        plan = _plan(arguments)
        if difference := _difference(made_by, plan.made_by):
            return difference
        chunkings = list(plan.chunkings)
        chunkings[chunk.group] = chunking._replace(threads=1)
        plan = plan._replace(chunkings=chunkings)
        ((_, rows),) = run_chunks(plan, [chunk], lambda segments: None)
    except Exception as error:
        return _failure(error)
    return rows


def _failure(error: Exception) -> str:
    """Describe an error as text, because other processes may lack its class."""
    return f"the worker on {platform.node()} failed: {type(error).__name__}: {error}"


def _difference(expected: Mapping[str, Any], made_by: Mapping[str, Any]) -> str:
    """Return a message if this worker's environment is not the expected one, otherwise ""."""
    words = provenance.different(expected, made_by)
    if not words:
        return ""
    return (
        f"the worker on {platform.node()} differs: {'; '.join(words[:NAMED])}. Use the same code, "
        "package versions and processor type on all workers."
    )


def packed(configs: Any, keys: Array, arguments: Mapping[str, Any]) -> bytes:
    """Pickle and compress a sweep's arguments. Pickling a script's code requires cloudpickle."""
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    keys_as_data = jax.device_get(jax.random.key_data(keys)), str(jax.random.key_impl(keys))
    try:
        content = pickler.dumps((configs, keys_as_data, dict(arguments)))
    except Exception as error:  # pickling may raise any exception
        advice = "" if pickler is not pickle else " Install cloudpickle: pip install cloudpickle."
        raise ConfigError(
            f"executor: the sweep cannot be sent to workers ({type(error).__name__}: {error})."
            f"{advice}"
        ) from error
    return zlib.compress(content, level=1)


_PREPARING = threading.Lock()


def _plan(arguments: bytes) -> SweepPlan:
    """Return a sweep's plan, prepared on the first call and then cached."""
    with _PREPARING:  # a worker may run tasks in several threads
        return _prepared(arguments)


@functools.lru_cache(maxsize=1)
def _prepared(arguments: bytes) -> SweepPlan:
    configs, (key_data, impl), others = pickle.loads(zlib.decompress(arguments))
    return plan_sweep(configs, jax.random.wrap_key_data(key_data, impl=impl), **others)


def _results(
    executor: Executor, function: Callable[..., Any], tasks: Mapping[Any, tuple[Any, ...]]
) -> Iterator[tuple[Any, Any]]:
    """Run tasks, and yield (name, result) as each task finishes.

    Tasks of dead workers are retried after all other tasks, with at most ``ATTEMPTS`` attempts.
    """
    for attempt in range(1, ATTEMPTS + 1):
        names = {executor.submit(function, *task): name for name, task in tasks.items()}
        failed = []
        try:
            for future in as_completed(names):
                name = names.pop(future)
                try:
                    result = future.result()
                except Exception as error:  # raised by the executor; tasks return errors as text
                    if attempt == ATTEMPTS:
                        raise RuntimeError(f"a worker failed: {error!r}") from error
                    failed.append(name)
                    continue
                # Dask reruns a dead worker's finished tasks if a future still refers to them.
                del future
                yield name, result
        finally:
            for future in names:
                future.cancel()
        tasks = {name: tasks[name] for name in failed}
