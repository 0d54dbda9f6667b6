"""Protocol between harness and driver: one JSON object per line, on standard input and output.

``{"do": "setup", ...}`` comes first. ``{"do": "run", "rounds": n}`` returns the seconds per round,
and the processor seconds (over all threads) of the run and of the process so far.
``{"do": "save", "path": p}`` writes the global model. End of input ends the driver.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Protocol

from benchmarks.workloads import WORKLOADS, Weights, Workload, write_weights


class Driver(Protocol):
    """Contender with a loaded workload.

    Attributes:
      device: ``cpu``, or the name of an accelerator.
    """

    device: str

    def run(self, rounds: int) -> float | None:
        """Play rounds, and return a value to report instead of the seconds per round, or None."""

    def weights(self) -> Weights:
        """Return the weights of the global model."""


def serve(make: Callable[[Workload, str, str, str], Driver], *packages: str) -> None:
    """Answer the harness until it closes the pipe.

    Args:
      make: function of (workload, path of the data, path of the first weights, variant) that
        returns a driver.
      *packages: packages whose versions are reported.
    """
    # The contender's prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    driver: Driver | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, object] = {}
        if request["do"] == "setup":
            workload = WORKLOADS[request["workload"]]
            driver = make(workload, request["data"], request["weights"], request["variant"])
            answer["versions"] = {name: version(name) for name in packages}
            answer["device"] = driver.device
        elif driver is None:
            raise RuntimeError("setup comes first")
        elif request["do"] == "run":
            start, worked = time.perf_counter(), time.process_time()
            value = driver.run(request["rounds"])
            seconds = (time.perf_counter() - start) / request["rounds"]
            answer["value"] = seconds if value is None else value
            answer["so_far"] = time.process_time()
            answer["processor"] = time.process_time() - worked
        else:
            write_weights(driver.weights(), request["path"])
        print(json.dumps(answer), file=answers)
