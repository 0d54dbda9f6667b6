"""The persistent compilation cache, XLA's options, and how long compiling took."""

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
# Seconds after which a user wonders what is going on.
PATIENCE = 0.5
# XLA's options for programs on a CPU. Processor seconds of a first ``simulate(digits_small)``: 18
# with JAX's defaults, 12 with those of small runs. LLVM compiles in four fifths of the time at
# level 2, and what it compiles is as fast. XLA's older emitters compile in half the time, but are
# slower by a third on large arrays; JAX 0.12 has none.
_LEVEL, _EMITTERS = "xla_backend_optimization_level", "xla_cpu_use_fusion_emitters"
CPU_OPTIONS: dict[str, dict[str, Any]] = {"small": {_LEVEL: 2}, "large": {_LEVEL: 2}}
if jax.__version_info__ < (0, 12):
    CPU_OPTIONS["small"][_EMITTERS] = False
# New objects after which Python looks for garbage, of which a trace makes little.
_OBJECTS = 50_000


def compiler_options(runs: str) -> dict[str, Any] | None:
    """Return the options of top-level programs for ``small`` or ``large`` runs, for a CPU alone.

    A level in ``XLA_FLAGS`` takes precedence.
    """
    if _LEVEL in os.environ.get("XLA_FLAGS", "") or jax.default_backend() != "cpu":
        return None
    return CPU_OPTIONS[runs]


def use_cache() -> pathlib.Path | None:
    """Keep compiled programs in a folder, from which later processes take them.

    ``JAX_COMPILATION_CACHE_DIR`` names another folder; ``JAX_ENABLE_COMPILATION_CACHE=false`` keeps
    nothing. Programs that call back to Python (``clustered_similarity``) cannot be kept.

    Returns:
      The folder, or None if nothing is kept.
    """
    if not jax.config.values["jax_enable_compilation_cache"]:
        return None
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    folder = pathlib.Path(named or cache_folder() / "compiled")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Of the many small programs of a run each takes less than JAX's default of a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


@functools.cache
def _use_default_cache() -> None:
    """Use the cache from a process's first run on, unless JAX has one or the disk refuses."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        with contextlib.suppress(OSError, ConfigError):  # no home, or one that cannot be written
            (cache_folder() / "compiled").mkdir(parents=True, exist_ok=True)
            use_cache()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Use the cache, and let Python collect garbage rarely: a sixth of a compilation otherwise."""
    _use_default_cache()
    before = gc.get_threshold()
    if not 0 < before[0] < _OBJECTS:  # off, rare, or set by another thread
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
    """Say on a terminal or in a notebook, once, that compiling takes time."""
    console = Console(stderr=True)
    waiting = threading.Timer(PATIENCE, _tell)
    if console.is_terminal or console.is_jupyter:
        waiting.start()
    try:
        yield
    finally:
        waiting.cancel()


class Compilations:
    """Counts of what JAX has compiled in this process since the object was made.

    Attributes:
      seconds: spent in the compiler or on reading the cache.
      programs: compiled or read.
      compiled: programs compiled again; counted only while a cache is in use.
      from_cache: programs read from the cache.
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
