"""Flower driver: the simulation engine (Ray) with PyTorch clients.

Unlike the other contenders, Flower serialises models and sends them to processes and back. The
start of the engine and its first round are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.drivers.flower_client import client_app
from benchmarks.drivers.protocol import serve
from benchmarks.drivers.torch_models import build, from_torch
from benchmarks.workloads import WORKLOADS, Weights, Workload, read_weights


class RoundRobin(FedAvg):
    """FedAvg over the workload's cohorts."""

    def __init__(self, workload: Workload):
        super().__init__(fraction_evaluate=0.0)
        self.workload = workload

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        nodes = list(grid.get_node_ids())
        return [
            Message(
                content=RecordDict(
                    {"arrays": arrays, "config": ConfigRecord({**config, "client": client})}
                ),
                message_type="train",
                dst_node_id=nodes[client],
            )
            for client in self.workload.cohort_of(server_round - 1)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        errors = [reply.error.reason for reply in replies if reply.has_error()]
        if errors or len(replies) < self.workload.cohort:
            # Flower would continue without the missing replies.
            raise RuntimeError(f"{len(replies)} replies, errors: {errors[:1]}")
        return super().aggregate_train(server_round, replies)


class Flower:
    """Engine that each measurement starts, warms up with an uncounted round, and stops."""

    # The clients have no share of an accelerator.
    device = "cpu"

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        name = next(name for name, other in WORKLOADS.items() if other is workload)
        self.workload = workload
        self.config = ConfigRecord({"workload": name, "data": data, "weights": weights})
        self.model = build(workload, read_weights(weights))

    def run(self, rounds: int) -> float:
        return self._play(rounds + 1) / rounds

    def weights(self) -> Weights:
        """Play one round, and return the global model."""
        self._play(1)
        return from_torch(self.workload, list(self.model.parameters()))

    def _play(self, rounds: int) -> float:
        """Play rounds, and return the seconds of all but the first."""
        ends: list[float] = []
        server_app = ServerApp()

        @server_app.main()
        def main(grid: Grid, context: Context) -> None:
            while len(list(grid.get_node_ids())) < self.workload.clients:
                time.sleep(0.1)
            result = RoundRobin(self.workload).start(
                grid,
                ArrayRecord(self.model.state_dict()),
                num_rounds=rounds,
                train_config=self.config,
                evaluate_fn=lambda round, arrays: ends.append(time.perf_counter()),
            )
            self.model.load_state_dict(result.arrays.to_torch_state_dict())

        run_simulation(
            server_app,
            client_app,
            num_supernodes=self.workload.clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
        return ends[-1] - ends[1]


if __name__ == "__main__":
    serve(Flower, "flwr", "ray", "torch")
