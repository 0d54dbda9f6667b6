"""Workloads of all contenders: networks, data and first weights. This module needs only NumPy.

A round selects the next ``cohort`` clients in cyclic order. Each client makes ``epochs`` passes
over its samples with a fresh optimiser, starting from the global model. The mean update is added to
the global model. Training is float32 without privacy noise or evaluations. Pixels become
x / 127.5 - 1.
"""

from __future__ import annotations

import math
import pathlib
from typing import NamedTuple

import numpy as np

NUM_CLASSES = 10
Weights = list[tuple[np.ndarray, np.ndarray]]


class Workload(NamedTuple):
    """Workload of a measurement.

    Attributes:
      summary: short description for the report.
      clients, samples, shape: K, samples per client, shape of a sample (uint8, channels last).
      cohort, batch: clients per round, samples per local step.
      optimizer, learning_rate: optimiser of the clients (``adam`` or ``sgd``), and its rate.
      layers: ``("conv", width)`` is a square convolution without padding, ``("dense", width)`` a
        dense layer, ``("pool", 2)`` max pooling and ``("norm", 0)`` a batch norm. A relu follows
        every convolution and dense layer except the last.
      rounds: rounds per measurement.
      epochs: passes over a client's samples in a round.
      kernel: height and width of the convolution kernels.
    """

    summary: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    cohort: int
    batch: int
    optimizer: str
    learning_rate: float
    layers: tuple[tuple[str, int], ...]
    rounds: int
    epochs: int = 1
    kernel: int = 3

    @property
    def normed(self) -> bool:
        """Whether the network has batch norms."""
        return ("norm", 0) in self.layers

    @property
    def steps(self) -> int:
        """Local steps of a client in a round."""
        return self.epochs * math.ceil(self.samples / self.batch)

    def cohort_of(self, round: int) -> list[int]:
        """Return the clients of a round; rounds are counted from 0."""
        return [(round * self.cohort + i) % self.clients for i in range(self.cohort)]

    def rows(self, client: int) -> slice:
        """Return the rows of a client's samples."""
        return slice(client * self.samples, (client + 1) * self.samples)


class Layer(NamedTuple):
    """Layer with weights.

    Attributes:
      kind: ``conv``, ``dense`` or ``norm``.
      kernel: shape of the kernel, HWIO for ``conv`` and [in, out] for ``dense``, or of the scales.
      positions: number of outputs that share the kernel; 0 for ``norm``.
      image: (h, w, c) of the image that this dense layer flattens, otherwise None.
    """

    kind: str
    kernel: tuple[int, ...]
    positions: int
    image: tuple[int, int, int] | None


_MLP = (("dense", 32), ("dense", 16), ("dense", NUM_CLASSES))
_CNN3 = (
    *(("conv", 32), ("pool", 2), ("conv", 64), ("pool", 2), ("conv", 128), ("pool", 2)),
    *(("dense", 128), ("dense", 64), ("dense", 32), ("dense", NUM_CLASSES)),
)
_CNN3_NORMED = (
    *(("conv", 32), ("pool", 2), ("norm", 0), ("conv", 64), ("pool", 2), ("norm", 0)),
    *(("conv", 128), ("pool", 2), ("norm", 0), ("dense", 128), ("norm", 0), ("dense", 64)),
    *(("norm", 0), ("dense", 32), ("norm", 0), ("dense", NUM_CLASSES)),
)
# pfl-research's CIFAR-10 network (`simple_cnn`), without its dropout.
_SIMPLE_CNN = (("conv", 32), ("conv", 64), ("pool", 2), ("dense", 128), ("dense", NUM_CLASSES))
# PyTorch's tutorial network (5 x 5 convolutions), which BlazeFL's benchmark trains.
_TUTORIAL_CNN = (
    *(("conv", 6), ("pool", 2), ("conv", 16), ("pool", 2)),
    *(("dense", 120), ("dense", 84), ("dense", NUM_CLASSES)),
)
_BLAZEFL = (100, 50, "sgd", 0.1, _TUTORIAL_CNN, 1, 5, 5)

_DIGITS, _COLOURS = (28, 28, 1), (32, 32, 3)
WORKLOADS = {
    "W1": Workload(
        "1,000 clients of 50 images, pfl's CIFAR-10 network, 50 clients per round, 5 steps",
        *(1000, 50, _COLOURS, 50, 10, "sgd", 0.1, _SIMPLE_CNN, 1),
    ),
    "W2": Workload(
        "300 clients of 200 digits, mlp 32-16, 15 clients per round, 10 Adam steps",
        *(300, 200, _DIGITS, 15, 20, "adam", 1e-3, _MLP, 20),
    ),
    "W3": Workload(
        "30 clients of 1,333 images, cnn3, 5 clients per round, 67 Adam steps",
        *(30, 1333, _COLOURS, 5, 20, "adam", 1e-3, _CNN3, 1),
    ),
    "W4": Workload(
        "30 clients of 1,333 images, cnn3 with batch norm, 5 clients per round, 67 Adam steps",
        *(30, 1333, _COLOURS, 5, 20, "adam", 1e-3, _CNN3_NORMED, 1),
    ),
    # BlazeFL's published setting with a fifth of its images.
    "W5": Workload(
        "100 clients of 100 images, BlazeFL's CIFAR-10 network, 100 clients per round, 5 epochs",
        *(100, 100, _COLOURS, *_BLAZEFL),
    ),
    "W5_full": Workload(
        "100 clients of 500 images, BlazeFL's CIFAR-10 network, 100 clients per round, 5 epochs",
        *(100, 500, _COLOURS, *_BLAZEFL),
    ),
    # A run of the study in ``benchmarks.study``: the sizes of the preset mnist_small.
    "W6": Workload(
        "30 clients of 67 digits, mlp 32-16, 5 clients per round, 4 Adam steps, 60 rounds",
        *(30, 67, _DIGITS, 5, 20, "adam", 1e-3, _MLP, 60),
    ),
    # Equal samples have no spread for batch norm, and Adam's first step depends only on signs. So
    # W4's model is compared after one SGD step on all samples of a client, in any order.
    "W4_step": Workload(
        "10 clients of 20 images, cnn3 with batch norm, 5 clients per round, one SGD step",
        *(10, 20, _COLOURS, 5, 20, "sgd", 0.1, _CNN3_NORMED, 1),
    ),
    # For tests of the harness.
    "tiny": Workload(
        "4 clients of 6 digits, mlp, 2 clients per round, 2 epochs of 3 Adam steps",
        *(4, 6, (4, 4, 1), 2, 2, "adam", 1e-3, (("dense", 3), ("dense", NUM_CLASSES)), 2, 2),
    ),
}  # fmt: skip


def weighted_layers(workload: Workload) -> list[Layer]:
    """Return the layers with weights, in order."""
    height, width, channels = workload.shape
    size, layers = 0, []
    for kind, parameter in workload.layers:
        if kind == "conv":
            height, width = height - workload.kernel + 1, width - workload.kernel + 1
            kernel = (workload.kernel, workload.kernel, channels, parameter)
            layers.append(Layer("conv", kernel, height * width, None))
            channels = parameter
        elif kind == "pool":
            height, width = height // parameter, width // parameter
        elif kind == "norm":
            layers.append(Layer("norm", (size or channels,), 0, None))
        else:
            image = None if size else (height, width, channels)
            size = size or height * width * channels
            layers.append(Layer("dense", (size, parameter), 1, image))
            size = parameter
    return layers


def flops(workload: Workload) -> float:
    """Count floating point operations of a round, a gradient as twice the forward pass."""
    forward = sum(2 * math.prod(x.kernel) * x.positions for x in weighted_layers(workload))
    return 3.0 * forward * workload.epochs * workload.samples * workload.cohort


def first_weights(workload: Workload) -> Weights:
    """Draw kernels and biases, uniform in +-1 / sqrt(fan in); norms get ones and zeros."""
    rng, weights = np.random.default_rng(1), []
    for layer in weighted_layers(workload):
        if layer.kind == "norm":
            weights.append((np.ones(layer.kernel, np.float32), np.zeros(layer.kernel, np.float32)))
            continue
        bound = math.prod(layer.kernel[:-1]) ** -0.5
        kernel = rng.uniform(-bound, bound, layer.kernel)
        bias = rng.uniform(-bound, bound, layer.kernel[-1])
        weights.append((kernel.astype(np.float32), bias.astype(np.float32)))
    return weights


def write_data(workload: Workload, path: pathlib.Path, *, one_sample_each: bool = False) -> None:
    """Write seeded random images and labels as uint8 and int32.

    With ``one_sample_each``, all samples of a client are identical. Their order then does not
    matter, and all contenders must obtain the same model.
    """
    rng = np.random.default_rng(0)
    count = workload.clients * workload.samples
    x = rng.integers(0, 256, (count, *workload.shape), np.uint8)
    y = rng.integers(0, NUM_CLASSES, count, np.int32)
    if one_sample_each:
        first = np.repeat(np.arange(workload.clients) * workload.samples, workload.samples)
        x, y = x[first], y[first]
    np.savez(path, x=x, y=y)


def read_data(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images [K n, h, w, c] and labels [K n]; client k holds ``workload.rows(k)``."""
    with np.load(path) as file:
        return file["x"], file["y"]


def write_weights(weights: Weights, path: str | pathlib.Path) -> None:
    """Write kernels and biases."""
    np.savez(path, *(array for pair in weights for array in pair))


def read_weights(path: str | pathlib.Path) -> Weights:
    """Read the weights that ``write_weights`` wrote."""
    with np.load(path) as file:
        arrays = [file[f"arr_{i}"] for i in range(len(file.files))]
    return list(zip(arrays[::2], arrays[1::2], strict=True))
