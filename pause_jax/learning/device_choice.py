"""How training runs on each kind of device: every choice that a measurement makes, in one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array, lax


class DeviceChoice(NamedTuple):
    """What suits a kind of device. Results are equal up to rounding whatever it holds.

    Attributes:
      kept: bytes that clients who train side by side may keep together.
      unroll: local steps of one turn of the loop, where all clients make equally many.
      fixed_steps: whether clients who differ in steps all make the largest number of them, which
        the compiler then knows; steps beyond a client's own change nothing.
      convolution: what a model's ``auto`` is: ``xla``, or by the size of the patches (``auto``).
    """

    kept: int
    unroll: int = 1
    fixed_steps: bool = False
    convolution: str = "xla"


# A CPU is fastest while training stays in the cache; elsewhere the bound is there for the memory.
# `python -m benchmarks.device` measures all of it. Only the row of the CPU was measured yet.
CHOICES = {"cpu": DeviceChoice(kept=16 * 2**20, convolution="auto")}
ELSEWHERE = DeviceChoice(kept=2**30)


def loop(turns: Array | int, step: Callable[[Array, Any], Any], start: Any, unroll: int) -> Any:
    """``fori_loop`` from 0 on; ``unroll`` steps a turn where their number is static."""
    static = isinstance(turns, int) and unroll > 1
    return lax.fori_loop(0, turns, step, start, unroll=unroll if static else None)


def device_choice() -> DeviceChoice:
    """The row of the default backend."""
    return CHOICES.get(jax.default_backend(), ELSEWHERE)
