"""A server in a process of its own: ``python -m tests.flower.killed FOLDER ROUNDS DEADLY``.

While clients train in round DEADLY, and one has released, the process kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message

from pause_jax.deploy.flower import PauseStrategy
from tests.flower.local import LocalGrid, nodes
from tests.flower.world import KEY, client_app, config_of, model


def seconds() -> list[list[float]]:
    """What each of ten clients takes in each round, as planted."""
    drawn = np.random.default_rng(0).lognormal(0.0, 0.7, (40, 10)) * np.linspace(0.2, 1.0, 10)
    return drawn.tolist()


def play(folder: Path, rounds: int, deadly: int = 0) -> list[list[int]]:
    """The clients of each round, from the state in the folder on."""
    config = config_of()
    ledger = f"{folder}/ledgers/{{partition-id}}"
    app = client_app([0.0] * 10, ledger, privacy=config.privacy, reported=seconds())

    def dying(message: Message, context: Context) -> Any:
        reply = app(message, context)
        trains = message.metadata.message_type == "train"
        if trains and message.content["config"]["server-round"] == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    strategy = PauseStrategy(
        config,
        KEY,
        state=folder / "state",
        seconds="reported",
        poll_seconds=0.005,
        min_available=10,
    )
    # Other nodes in every process, as SuperNodes without registered keys have them.
    grid = LocalGrid(dying, nodes(*range(10), first=os.getpid() * 100))
    strategy.start(grid, model(), num_rounds=rounds)
    return [each.choice.clients.tolist() for each in strategy.history]


if __name__ == "__main__":
    chosen = play(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    (Path(sys.argv[1]) / "chosen.json").write_text(json.dumps(chosen))
