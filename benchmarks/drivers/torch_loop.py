"""Driver of plain PyTorch: one client after the other, one batch after the other."""

from __future__ import annotations

import torch

from benchmarks.drivers.protocol import serve
from benchmarks.drivers.torch_models import Clients, build, device_name, finish, from_torch, train
from benchmarks.workloads import Weights, Workload, read_data, read_weights


class TorchLoop:
    """FedAvg as a loop; variant ``channels_last`` sets the memory format of images and kernels."""

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        channels_last = variant == "channels_last"
        self.workload, self.round, self.device = workload, 0, device_name()
        self.clients = Clients(workload, *read_data(data), channels_last)
        self.model = build(workload, read_weights(weights))
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)

    def run(self, rounds: int) -> None:
        parameters = list(self.model.parameters())
        for _ in range(rounds):
            start = [parameter.detach().clone() for parameter in parameters]
            total = [torch.zeros_like(parameter) for parameter in start]
            for client in self.workload.cohort_of(self.round):
                with torch.no_grad():
                    torch._foreach_copy_(parameters, start)
                train(self.model, self.workload, self.clients.epochs(client))
                with torch.no_grad():
                    torch._foreach_add_(total, parameters)
            with torch.no_grad():
                torch._foreach_div_(total, self.workload.cohort)
                torch._foreach_copy_(parameters, total)
            self.round += 1
        finish()

    def weights(self) -> Weights:
        return from_torch(self.workload, list(self.model.parameters()))


if __name__ == "__main__":
    serve(TorchLoop, "torch")
