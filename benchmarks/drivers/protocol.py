"""How the harness talks to a driver: one JSON object a line, on standard input and output.

``{"do": "setup", ...}`` once, then ``{"do": "run", "rounds": n}`` answers seconds a round, with the
processor seconds of all threads that the run took and that the process has taken so far, and
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
    """A contender with a workload loaded.

    Attributes:
      device: what it computes on; ``cpu``, or the name of an accelerator.
    """

    device: str

    def run(self, rounds: int) -> float | None:
        """Play rounds. Returns the value to report instead of the measured seconds a round."""

    def weights(self) -> Weights:
        """The global model."""


def serve(make: Callable[[Workload, str, str, str], Driver], *packages: str) -> None:
    """Answer the harness until it closes the pipe.

    Args:
      make: from (workload, path of the data, path of the first weights, variant) to a driver.
      packages: whose versions are reported.
    """
    # What the contender prints must not get between the answers.
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
