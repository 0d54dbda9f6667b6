"""One real Flower simulation of ten clients: ``python -m tests.flower.play FOLDER ROUNDS``.

Ray's processes, Flower's SuperLink in memory, and planted delays. In FOLDER are ``plan.json``
(delays, faults, timeout), what the strategy keeps, the clients' ledgers, and ``played.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from pause_jax.deploy.flower import PauseStrategy
from tests.flower.world import KEY, client_app, config_of, model


def play(folder: Path, rounds: int) -> None:
    """Play rounds, from the state in the folder on."""
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    config = config_of()
    app = client_app(
        plan["delays"],
        f"{folder}/ledgers/{{partition-id}}.jsonl",
        privacy=config.privacy,
        faults={int(client): fault for client, fault in plan.get("faults", {}).items()},
    )
    server = ServerApp()
    strategy = PauseStrategy(
        config,
        KEY,
        state=folder / "state",
        timeout_seconds=plan.get("timeout", 60.0),
        poll_seconds=0.02,
        min_available=10,
    )

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        result = strategy.start(grid, model(), num_rounds=rounds)
        arrays = {name: array.numpy().tolist() for name, array in result.arrays.items()}
        (folder / "model.json").write_text(json.dumps(arrays))

    run_simulation(
        server,
        app,
        num_supernodes=10,
        backend_config={"client_resources": {"num_cpus": 0.5, "num_gpus": 0.0}},
    )
    played = [
        {
            "round": each.choice.round,
            "clients": each.choice.clients.tolist(),
            "epsilon": each.choice.epsilon.tolist(),
            "seconds": each.seconds,
            "failed": each.failed,
            "idle": each.idle,
        }
        for each in strategy.history
    ]
    counts = np.asarray(strategy.selector.counts).tolist()
    (folder / "played.json").write_text(
        json.dumps({"rounds": played, "counts": counts, "spent": sorted(strategy.roster.spent)})
    )


if __name__ == "__main__":
    play(Path(sys.argv[1]), int(sys.argv[2]))
