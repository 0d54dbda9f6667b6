"""Persistent compilation cache, XLA compiler options and compilation statistics."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
from rich.console import Console

from pause_jax.base.cache import cache_folder
from pause_jax.base.struct import ConfigError

COMPILING = "compiling ... (once: programs are kept for later starts)"
# Delay of the message above, in seconds. Shorter waits need no explanation.
PATIENCE = 0.5
# XLA options for CPU programs. The first ``simulate(digits_small)`` takes 18 CPU seconds with JAX's
# defaults, and 12 with the options for small runs. LLVM's level 2 compiles a fifth faster, and the
# programs are as fast. XLA's older emitters, which JAX 0.12 removed, halve the compile time, but
# their programs are a third slower on large arrays.
_LEVEL, _EMITTERS = "xla_backend_optimization_level", "xla_cpu_use_fusion_emitters"
CPU_OPTIONS: dict[str, dict[str, Any]] = {"small": {_LEVEL: 2}, "large": {_LEVEL: 2}}
if jax.__version_info__ < (0, 12):
    CPU_OPTIONS["small"][_EMITTERS] = False
# Number of allocations between garbage collections. JAX creates little garbage while it traces.
_OBJECTS = 50_000


def compiler_options(runs: str) -> dict[str, Any] | None:
    """Return the XLA options for top-level programs of ``small`` or ``large`` runs.

    The result is None on accelerators, and if ``XLA_FLAGS`` sets the optimization level.
    """
    if _LEVEL in os.environ.get("XLA_FLAGS", "") or jax.default_backend() != "cpu":
        return None
    return CPU_OPTIONS[runs]


def use_cache() -> pathlib.Path | None:
    """Enable JAX's persistent compilation cache.

    ``JAX_COMPILATION_CACHE_DIR`` overrides the folder, and ``JAX_ENABLE_COMPILATION_CACHE=false``
    disables the cache. JAX cannot cache programs with Python callbacks (``clustered_similarity``).

    Returns:
      The cache folder, or None if the cache is disabled.
    """
    if not jax.config.values["jax_enable_compilation_cache"]:
        return None
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    folder = pathlib.Path(named or cache_folder() / "compiled")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # A run compiles many small programs, each in less than JAX's default threshold of 1 s.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


@functools.cache
def _use_default_cache() -> None:
    """Enable the cache once per process, unless one is set or its folder cannot be created."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        with contextlib.suppress(OSError, ConfigError):  # no HOME, or a read-only one
            (cache_folder() / "compiled").mkdir(parents=True, exist_ok=True)
            use_cache()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Enable the cache, and delay garbage collection, which would take 1/6 of the compile time."""
    _use_default_cache()
    before = gc.get_threshold()
    if not 0 < before[0] < _OBJECTS:  # disabled, already rare, or set by another thread
        yield
        return
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


_tell = functools.cache(lambda: print(COMPILING, file=sys.stderr))


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Print that JAX is compiling, once per process, on a terminal or in a notebook."""
    console = Console(stderr=True)
    waiting = threading.Timer(PATIENCE, _tell)
    if console.is_terminal or console.is_jupyter:
        waiting.start()
    try:
        yield
    finally:
        waiting.cancel()


class Compilations:
    """Counter of JAX compilations in this process since the counter's creation.

    Attributes:
      seconds: time spent compiling or reading the cache.
      programs: number of programs compiled or read from the cache.
      compiled: number of programs that the cache did not contain; 0 without a cache.
      from_cache: number of programs read from the cache.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.programs = self.compiled = self.from_cache = 0
        jax.monitoring.register_event_duration_secs_listener(self._took)
        jax.monitoring.register_event_listener(self._happened)

    def __str__(self) -> str:
        programs = f"{self.compiled} programs compiled, {self.from_cache} from the cache"
        return f"{self.seconds:.1f} s of it to compile ({programs})"

    def _took(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.seconds += duration_secs
            self.programs += 1

    def _happened(self, event: str, **_: Any) -> None:
        self.compiled += event == "/jax/compilation_cache/cache_misses"
        self.from_cache += event == "/jax/compilation_cache/cache_hits"
