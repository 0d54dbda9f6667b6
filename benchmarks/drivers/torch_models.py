"""Networks of the workloads in PyTorch, and conversion of weights to the common layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.workloads import Weights, Workload, weighted_layers

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name() -> str:
    """Return the name of ``DEVICE`` for the report."""
    return torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"


def finish() -> None:
    """Wait until the device has finished all computations."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def build(workload: Workload, weights: Weights) -> nn.Sequential:
    """Build a network with these weights, for inputs [B, c, h, w]."""
    layers, flat = [], False
    shapes = iter(weighted_layers(workload))
    for kind, parameter in workload.layers:
        if kind == "pool":
            layers.append(nn.MaxPool2d(parameter))
            continue
        kernel = next(shapes).kernel
        if kind == "conv":
            layers.append(nn.Conv2d(kernel[2], kernel[3], workload.kernel))
        elif kind == "norm":
            norm = nn.BatchNorm1d if flat else nn.BatchNorm2d
            # The norm follows the relu, which commutes with max pooling.
            layers.append(norm(*kernel))
            continue
        else:
            if not flat:
                layers.append(nn.Flatten())
            flat = True
            layers.append(nn.Linear(*kernel))
        layers.append(nn.ReLU())
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), to_torch(workload, weights), strict=True):
            parameter.copy_(array)
    return model.to(DEVICE)


def to_torch(workload: Workload, weights: Weights) -> list[Tensor]:
    """Convert weights to parameters in the order of ``model.parameters()``."""
    parameters = []
    for layer, (kernel, bias) in zip(weighted_layers(workload), weights, strict=True):
        if layer.kind == "conv":
            kernel = kernel.transpose(3, 2, 0, 1)
        elif layer.kind == "norm":
            pass
        elif layer.image is not None:
            kernel = kernel.reshape(*layer.image, -1).transpose(3, 2, 0, 1).reshape(len(bias), -1)
        else:
            kernel = kernel.T
        parameters += [torch.from_numpy(np.ascontiguousarray(kernel)), torch.from_numpy(bias)]
    return parameters


def from_torch(workload: Workload, parameters: list[Tensor]) -> Weights:
    """Convert parameters to weights, the inverse of ``to_torch``."""
    arrays = [parameter.detach().cpu().numpy() for parameter in parameters]
    weights = []
    for layer, kernel, bias in zip(
        weighted_layers(workload), arrays[::2], arrays[1::2], strict=True
    ):
        if layer.kind == "conv":
            kernel = kernel.transpose(2, 3, 1, 0)
        elif layer.kind == "norm":
            pass
        elif layer.image is not None:
            height, width, channels = layer.image
            kernel = kernel.reshape(-1, channels, height, width).transpose(2, 3, 1, 0)
        else:
            kernel = kernel.T
        weights.append((kernel.reshape(layer.kernel), bias))
    return weights


class Clients:
    """Samples of all clients as uint8 in PyTorch's layout, converted to float on access."""

    def __init__(self, workload: Workload, x: np.ndarray, y: np.ndarray, channels_last: bool):
        self.workload = workload
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        images = torch.from_numpy(x).permute(0, 3, 1, 2)
        self.x = images.contiguous(memory_format=self.layout).to(DEVICE)
        self.y = torch.from_numpy(y).long().to(DEVICE)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the inputs in [-1, 1] and labels of one client, in stored order."""
        rows = self.workload.rows(client)
        return self.x[rows].float().mul_(2 / 255).sub_(1), self.y[rows]

    def epochs(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs and labels of one client once per epoch, in a new random order."""
        x, y = self.of(client)
        for _ in range(self.workload.epochs):
            order = torch.randperm(len(y), device=DEVICE)
            yield x[order].contiguous(memory_format=self.layout), y[order]


def train(model: nn.Module, workload: Workload, epochs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Train on the inputs and labels of each epoch with a fresh optimiser."""
    optimizer = OPTIMIZERS[workload.optimizer](model.parameters(), lr=workload.learning_rate)
    for x, y in epochs:
        for inputs, labels in zip(x.split(workload.batch), y.split(workload.batch), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
