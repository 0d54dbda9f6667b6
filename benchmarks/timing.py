"""Calls of this process timed in turns, and the rows of a table that they fill."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from benchmarks import report
from benchmarks.harness import Measured, Work
from benchmarks.run import say
from pause_jax import ConfigError


class Row(NamedTuple):
    """A row of the table.

    Attributes:
      what: was measured.
      found: of it.
      base: what its seconds are divided by, and that row's name; None for a base itself.
      compiles: whether there is a compilation to speak of.
      note: what else is to be said.
    """

    what: str
    found: Measured
    base: tuple[str, Measured] | None = None
    compiles: bool = True
    note: str = ""

    def cells(self) -> list[str]:
        """As in the table; of what was not measured only the reason."""
        if self.found.failure:
            return [self.what, *[""] * 5, self.found.failure]
        seconds, (to, base) = self.found.median, self.base or ("", self.found)
        ratio = f"{seconds / base.median:.2f}" if base.values else ""
        compiling, _ = report.started(self.found, compiles=self.compiles)
        return [self.what, self.found.device, f"{seconds:.3g}", ratio, to, compiling, self.note]


def here(calls: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, Measured]:
    """Measure calls of this process in turns, after one of each that compiles and does not count.

    Returns:
      name -> what was measured; of a call that fails, the reason.
    """
    device = jax.devices()[0].device_kind
    found: dict[str, Measured] = {}
    for turn in range(1 + repeat):
        for name, call in calls.items():
            if turn and found[name].failure:
                continue
            say(f"{name} {turn}/{repeat}")
            begin, worked = time.perf_counter(), time.process_time()
            try:
                jax.block_until_ready(call())
            except (ConfigError, RuntimeError) as error:
                if isinstance(error.__cause__, KeyboardInterrupt):
                    raise
                found[name] = Measured([], failure=f"failed: {str(error).splitlines()[0]}")
                continue
            seconds, work = time.perf_counter() - begin, time.process_time() - worked
            if not turn:
                found[name] = Measured([], device=device, work=Work(time.process_time(), work, []))
                continue
            found[name].values.append(seconds)
            found[name].work.later.append(work)  # type: ignore[union-attr]
    return found
