"""Driver of BlazeFL: a pool of threads, with PyTorch clients."""

from __future__ import annotations

import copy
import os
import threading
from typing import Any

import torch
from blazefl.core import ThreadPoolClientTrainer, deserialize_model, serialize_model
from torch import Tensor, nn

from benchmarks.drivers.protocol import serve
from benchmarks.drivers.torch_models import Clients, build, from_torch, train
from benchmarks.workloads import Weights, Workload, read_data, read_weights


class Threads(ThreadPoolClientTrainer):
    """Clients in threads, which run side by side only in a Python without the GIL."""

    def __init__(self, clients: Clients, model: nn.Module) -> None:
        self.clients, self.model = clients, model
        self.num_parallels, self.device = os.cpu_count() or 1, "cpu"
        self.cache: list[Tensor] = []
        self.stop_event = threading.Event()
        torch.set_num_threads(1)

    def worker(self, cid: int, device: str, payload: Tensor, stop_event: Any) -> Tensor:
        model = copy.deepcopy(self.model)
        deserialize_model(model, payload)
        train(model, self.clients.workload, self.clients.epochs(cid))
        return serialize_model(model)


class BlazeFl:
    """FedAvg on BlazeFL's client trainers."""

    device = "cpu"

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        self.workload, self.round = workload, 0
        self.model = build(workload, read_weights(weights))
        clients = Clients(workload, *read_data(data), channels_last=False)
        self.trainer = Threads(clients, self.model)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            cohort = self.workload.cohort_of(self.round)
            self.trainer.local_process(serialize_model(self.model), cohort)
            mean = torch.stack(self.trainer.cache).mean(0)
            deserialize_model(self.model, mean)
            self.trainer.cache = []
            self.round += 1

    def weights(self) -> Weights:
        return from_torch(self.workload, list(self.model.parameters()))


if __name__ == "__main__":
    serve(BlazeFl, "blazefl", "torch")
