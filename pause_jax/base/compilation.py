"""Cache folder, XLA compiler options, and a message shown while JAX compiles."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
from rich.console import Console

from pause_jax.base.struct import ConfigError

COMPILING = "Compiling ... (programs are cached for later runs)"
# Delay, in seconds, before the message above is printed. Shorter waits need no explanation.
PATIENCE = 0.5
# XLA options for CPU programs. The first simulation of ``digits_small`` takes 18 CPU seconds with
# JAX's defaults, and 12 with the options for small runs. LLVM's optimization level 2 reduces
# compile time by about a fifth without slowing programs down. XLA's older emitters (removed in JAX
# 0.11) halve the compile time, but the programs run a third slower on large arrays.
_LEVEL, _EMITTERS = "xla_backend_optimization_level", "xla_cpu_use_fusion_emitters"
CPU_OPTIONS: dict[str, dict[str, Any]] = {"small": {_LEVEL: 2}, "large": {_LEVEL: 2}}
if jax.__version_info__ < (0, 11):
    CPU_OPTIONS["small"][_EMITTERS] = False


def compiler_options(runs: str) -> dict[str, Any] | None:
    """Return the XLA options for top-level programs of ``small`` or ``large`` runs.

    The result is None on accelerators, or if ``XLA_FLAGS`` sets the optimization level.
    """
    if _LEVEL in os.environ.get("XLA_FLAGS", "") or jax.default_backend() != "cpu":
        return None
    return CPU_OPTIONS[runs]


def cache_folder() -> pathlib.Path:
    """Return ``$PAUSE_JAX_CACHE`` if set, otherwise ``pause_jax`` in the user's cache folder."""
    if folder := os.environ.get("PAUSE_JAX_CACHE"):
        return pathlib.Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return pathlib.Path(base).expanduser() / "pause_jax"
    except RuntimeError:
        raise ConfigError(
            "HOME is not set. Set HOME, or set PAUSE_JAX_CACHE to a folder."
        ) from None


@functools.cache
def use_cache() -> None:
    """Enable JAX's persistent cache, unless it is already enabled or its folder cannot be created.

    JAX cannot cache programs with Python callbacks, which ``clustered_similarity`` uses.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    with contextlib.suppress(OSError, ConfigError):  # HOME is unset or read-only
        folder = cache_folder() / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        # By default, JAX caches only programs that take at least 1 s to compile.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


_print_compiling = functools.cache(lambda: print(COMPILING, file=sys.stderr))


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Report slow compilation once per process, if stderr is interactive."""
    console = Console(stderr=True)
    waiting = threading.Timer(PATIENCE, _print_compiling)
    if console.is_terminal or console.is_jupyter:
        waiting.start()
    try:
        yield
    finally:
        waiting.cancel()
