"""A count of compilations, for tests that a program is compiled once."""

from __future__ import annotations

from typing import Any

import jax


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

    def _took(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.seconds += duration_secs
            self.programs += 1

    def _happened(self, event: str, **_: Any) -> None:
        self.compiled += event == "/jax/compilation_cache/cache_misses"
        self.from_cache += event == "/jax/compilation_cache/cache_hits"
