"""Driver of PyTorch with torch.func: a cohort side by side, by vmap over stacked weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.drivers.protocol import serve
from benchmarks.drivers.torch_models import (
    OPTIMIZERS,
    Clients,
    build,
    device_name,
    finish,
    from_torch,
)
from benchmarks.workloads import Weights, Workload, read_data, read_weights


class TorchFunc:
    """FedAvg with one batched step for the whole cohort."""

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        self.workload, self.round, self.device = workload, 0, device_name()
        self.clients = Clients(workload, *read_data(data), channels_last=False)
        self.model = build(workload, read_weights(weights))

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(self.model, parameters, (x,))
            return torch.nn.functional.cross_entropy(outputs, y)

        self.grads = vmap(grad(loss))

    def run(self, rounds: int) -> None:
        workload = self.workload
        for _ in range(rounds):
            stacked = {
                name: parameter.detach().expand(workload.cohort, *parameter.shape).clone()
                for name, parameter in self.model.named_parameters()
            }
            optimizer = OPTIMIZERS[workload.optimizer](stacked.values(), lr=workload.learning_rate)
            cohort = workload.cohort_of(self.round)
            for samples in zip(*map(self.clients.epochs, cohort), strict=True):
                x, y = (torch.stack(part) for part in zip(*samples, strict=True))
                for inputs, labels in zip(
                    x.split(workload.batch, dim=1), y.split(workload.batch, dim=1), strict=True
                ):
                    for name, gradient in self.grads(stacked, inputs, labels).items():
                        stacked[name].grad = gradient
                    optimizer.step()
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(stacked[name].mean(0))
            self.round += 1
        finish()

    def weights(self) -> Weights:
        return from_torch(self.workload, list(self.model.parameters()))


if __name__ == "__main__":
    serve(TorchFunc, "torch")
