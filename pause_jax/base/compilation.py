"""The persistent compilation cache, and how long compiling took."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import math
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
from rich.console import Console

from pause_jax.base.cache import cache_folder

# Seconds after which a user wonders what is going on.
PATIENCE = 0.5
COMPILING = "compiling ... (once: programs are kept for later starts)"
# Objects that a trace makes before Python looks for garbage among them, of which there is little.
_OBJECTS = 50_000
_LEVEL = "xla_backend_optimization_level"
_EMITTERS = "xla_cpu_use_fusion_emitters"
_LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"
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
    _quieten()
    folder = _folder()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Of the many small programs of a run each takes less than JAX's default of a second.
    jax.config.update(_LEAST_SECONDS, 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _folder() -> pathlib.Path:
    return pathlib.Path(
        os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache_folder() / "compiled"))
    )


@functools.cache
def _own_cache() -> bool:
    """Use the cache from the first run of a process on, unless JAX has been told of one.

    Returns:
      Whether it is ours alone: then programs of the user's own are not kept.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return False
    try:
        _folder().mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written: not worth a warning
        return False
    ours = use_cache() is not None
    if ours:
        jax.config.update(_LEAST_SECONDS, math.inf)
    return ours


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Around calls that may compile: the cache takes what they compile.

    JAX's check for NaN is off: our programs return NaN where there is no value, such as the
    accuracy of a round that is not evaluated. Python collects garbage rarely, which takes a sixth
    of a compilation otherwise.
    """
    _quieten()
    taking = _TAKING if _own_cache() else contextlib.nullcontext()
    with taking, _COLLECTING_RARELY, jax.debug_nans(False):
        yield


@functools.cache
def _quieten() -> None:
    """Silence two long lines that JAX 0.10.1 logs for each program from a cache.

    The processor does not list two tuning hints of the compiler (jax-ml/jax#38445). Errors are
    raised at any level. JAX sets the variable to 1; another value is the user's.
    """
    own = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") != "1"
    if own or jax.config.values["jax_logging_level"] != "NOTSET":
        return
    levels = {name: logging.getLogger(name).level for name in ("jax", "jaxlib")}
    # The first update sets the levels of C++ and Python. The second one keeps that of C++.
    jax.config.update("jax_logging_level", "CRITICAL")
    jax.config.update("jax_logging_level", "NOTSET")
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class _WhileAny:
    """Something holds for the process as long as any of its threads is within.

    Args:
      begin: called when the first thread enters.
      end: called when the last thread leaves, with what ``begin`` returned.
    """

    def __init__(self, begin: Callable[[], Any], end: Callable[[Any], None]) -> None:
        self._begin, self._end = begin, end
        self._lock = threading.Lock()
        self._threads = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._threads:
                self._begun = self._begin()
            self._threads += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if not self._threads:
                self._end(self._begun)


def _collect_rarely() -> tuple[int, int, int]:
    """Raise the threshold of Python's garbage collector; return what it was, 0 if it is off."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(_OBJECTS, before[0]), *before[1:])
    return before


def _take(least_seconds: float) -> None:
    jax.config.update(_LEAST_SECONDS, least_seconds)


# Our own cache takes programs as long as any thread compiles one of ours.
_TAKING = _WhileAny(lambda: _take(0.0), lambda _: _take(math.inf))
_COLLECTING_RARELY = _WhileAny(_collect_rarely, lambda before: gc.set_threshold(*before))


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """:func:`kept`, and says so on a terminal, or in a notebook, if it takes time."""
    with kept():
        console = Console(stderr=True)
        if console.is_terminal:
            status = console.status(COMPILING)
            say, unsay = status.start, status.stop
        elif console.is_jupyter:  # rich's own lines need widgets there
            say, unsay = functools.partial(print, COMPILING, file=sys.stderr), lambda: None
        else:
            yield
            return
        waiting = threading.Timer(PATIENCE, say)
        waiting.start()
        try:
            yield
        finally:
            waiting.cancel()
            waiting.join()
            unsay()


def compiler_options(*, quickly: bool, level: int = 2) -> dict[str, Any] | None:
    """What a program is compiled with.

    With LLVM's level 2 a CPU compiles it in four fifths of the time that level 3 takes, and runs
    it as fast. What ``XLA_FLAGS`` says comes first.

    Args:
      quickly: by XLA's older emitters on a CPU, where there still are any. They compile in half
        the time; on large arrays what they compile is slower by a third.
      level: of LLVM on a CPU. At 0 it compiles in two fifths of the time: for what runs once.
    """
    if _LEVEL in os.environ.get("XLA_FLAGS", "") or jax.default_backend() != "cpu":
        return None
    options: dict[str, Any] = {_LEVEL: level}
    if quickly and _takes(_EMITTERS, False):
        options[_EMITTERS] = False
    return options


@functools.cache
def _takes(option: str, value: Any) -> bool:
    """Whether this version of XLA has a compiler option."""
    try:
        jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
    except Exception:  # JAX names no type for an option that it does not have
        return False
    return True


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
