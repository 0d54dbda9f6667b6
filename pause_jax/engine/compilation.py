"""The persistent compilation cache, and how long compiling took."""

from __future__ import annotations

import os
import pathlib
from typing import Any, ClassVar

import jax

from pause_jax.cache import cache_folder

_LEVEL = "xla_backend_optimization_level"
_EMITTERS = "xla_cpu_use_fusion_emitters"
_COMPILED = "/jax/core/compile/backend_compile_duration"
_HITS = "/jax/compilation_cache/cache_hits"
_MISSES = "/jax/compilation_cache/cache_misses"


def use_cache() -> pathlib.Path | None:
    """Keep compiled programs in a folder, from which later processes take them.

    ``JAX_COMPILATION_CACHE_DIR`` names another folder; ``JAX_ENABLE_COMPILATION_CACHE=false`` keeps
    nothing. Programs that call back to Python (``clustered_similarity``) cannot be kept.

    Returns:
      The folder, or None if nothing is kept.
    """
    if not jax.config.values["jax_enable_compilation_cache"]:
        return None
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache_folder() / "compiled"))
    jax.config.update("jax_compilation_cache_dir", folder)
    # Of the many small programs of a run each takes less than JAX's default of a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return pathlib.Path(folder)


def hot() -> dict[str, Any] | None:
    """Compiler options of a program that plays rounds.

    With LLVM's level 2 a CPU compiles it in four fifths of the time that level 3 takes, and runs
    it as fast. What ``XLA_FLAGS`` says comes first.
    """
    own = _LEVEL in os.environ.get("XLA_FLAGS", "")
    return None if own or jax.default_backend() != "cpu" else {_LEVEL: 2}


def played_once() -> dict[str, Any] | None:
    """Compiler options of a program that begins runs, or ends them: XLA's older emitters on a CPU,
    where there still are any, which compile in two thirds of the time.
    """
    options = hot()
    if options is None or jax.__version_info__ >= (0, 12):
        return options
    return {**options, _EMITTERS: False}


class Compilations:
    """What JAX has compiled in this process since the object was made.

    Attributes:
      seconds: spent in the compiler or on reading the cache.
      programs: that were compiled or read.
      compiled: programs that were compiled anew; counted only while a cache is in use.
      from_cache: programs that came from the cache.
    """

    _open: ClassVar[list[Compilations]] = []

    def __init__(self) -> None:
        self.seconds = 0.0
        self.programs = self.compiled = self.from_cache = 0
        if not self._open:
            # JAX has no public way to take a listener back, so all meters share one pair.
            jax.monitoring.register_event_duration_secs_listener(_took)
            jax.monitoring.register_event_listener(_happened)
        self._open.append(self)

    def __str__(self) -> str:
        programs = f"{self.compiled} programs compiled, {self.from_cache} from the cache"
        return f"{self.seconds:.1f} s of it to compile ({programs})"


def _took(event: str, duration_secs: float, **_: Any) -> None:
    if event == _COMPILED:
        for meter in Compilations._open:
            meter.seconds += duration_secs
            meter.programs += 1


def _happened(event: str, **_: Any) -> None:
    for meter in Compilations._open:
        meter.compiled += event == _MISSES
        meter.from_cache += event == _HITS
