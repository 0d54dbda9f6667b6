"""Driver of BlazeFL: a pool of processes (variant ``processes``) or threads, with PyTorch clients.

The clients share the driver's data and model, which the processes of a round inherit by a fork.
"""

from __future__ import annotations

import copy
import os
import threading
from typing import Any

import torch
from blazefl.core import (
    IPCMode,
    ProcessPoolClientTrainer,
    SHMHandle,
    ThreadPoolClientTrainer,
    deserialize_model,
    serialize_model,
)
from torch import Tensor, multiprocessing, nn

from benchmarks.drivers.protocol import serve
from benchmarks.drivers.torch_models import Clients, build, from_torch, train
from benchmarks.workloads import Weights, Workload, read_data, read_weights

_LOADED: dict[str, Any] = {}


def _trained(client: int, weights: Tensor) -> Tensor:
    """Return the weights of a client that starts from these weights."""
    clients: Clients = _LOADED["clients"]
    model: nn.Module = copy.deepcopy(_LOADED["model"])
    deserialize_model(model, weights)
    train(model, clients.workload, clients.epochs(client))
    return serialize_model(model)


class Processes(ProcessPoolClientTrainer):
    """Clients in processes, with weights in shared memory."""

    ipc_mode = IPCMode.SHARED_MEMORY

    def __init__(self) -> None:
        self.num_parallels, self.device, self.cache = os.cpu_count() or 1, "cpu", []
        self.stop_event = multiprocessing.Manager().Event()

    def get_client_config(self, cid: int) -> int:
        return cid

    def prepare_uplink_package_buffer(self) -> Tensor:
        return serialize_model(_LOADED["model"])

    @staticmethod
    def worker(
        config: int, payload: Tensor, device: str, stop_event: Any, *, shm_buffer: Tensor
    ) -> SHMHandle:
        torch.set_num_threads(1)
        shm_buffer.copy_(_trained(config, payload))
        return SHMHandle()


class Threads(ThreadPoolClientTrainer):
    """Clients in threads, which run side by side only in a Python without the GIL."""

    def __init__(self) -> None:
        self.num_parallels, self.device, self.cache = os.cpu_count() or 1, "cpu", []
        self.stop_event = threading.Event()
        torch.set_num_threads(1)

    def worker(self, cid: int, device: str, payload: Tensor, stop_event: Any) -> Tensor:
        return _trained(cid, payload)


class BlazeFl:
    """FedAvg on BlazeFL's client trainers."""

    device = "cpu"

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        self.workload, self.round = workload, 0
        self.model = build(workload, read_weights(weights))
        clients = Clients(workload, *read_data(data), channels_last=False)
        _LOADED.update(clients=clients, model=self.model)
        self.trainer = Processes() if variant == "processes" else Threads()

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
