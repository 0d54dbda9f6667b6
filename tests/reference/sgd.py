"""Local training of an affine model, step by step in float64: slow and obvious on purpose."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Trained(NamedTuple):
    """kernel [features, outputs], bias [outputs], and the mean of the mini-batch losses."""

    kernel: np.ndarray
    bias: np.ndarray
    loss: float


class Moments(NamedTuple):
    """Adam's running means of the gradients and their squares, and their number of steps."""

    first: np.ndarray | float = 0.0
    second: np.ndarray | float = 0.0
    steps: int = 0


def step(
    weights: np.ndarray, gradient: np.ndarray, moments: Moments, rate: float, optimizer: str
) -> tuple[np.ndarray, Moments]:
    """One step of SGD or Adam."""
    if optimizer == "sgd":
        return weights - rate * gradient, moments
    steps = moments.steps + 1
    first = 0.9 * moments.first + 0.1 * gradient
    second = 0.999 * moments.second + 0.001 * gradient**2
    mean, square = first / (1 - 0.9**steps), second / (1 - 0.999**steps)
    return weights - rate * mean / (np.sqrt(square) + 1e-8), Moments(first, second, steps)


def batches(order: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """One pass in the given order; the last batch may be smaller."""
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def cross_entropy(outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean softmax cross entropy and its gradient with respect to the outputs."""
    exp = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    probability = exp / exp.sum(axis=1, keepdims=True)
    loss = -np.mean(np.log(probability[np.arange(len(labels)), labels]))
    return float(loss), (probability - np.eye(outputs.shape[1])[labels]) / len(labels)


def half_squared_error(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean of half the squared error and its gradient with respect to the outputs."""
    error = outputs[:, 0] - targets
    return float(np.mean(error**2 / 2)), error[:, None] / len(targets)


def train(
    kernel: np.ndarray,
    bias: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    steps: list[np.ndarray],
    *,
    learning_rate: float,
    optimizer: str,
) -> Trained:
    """SGD or Adam on the rows of each step. Integer y means classification."""
    criterion = cross_entropy if np.issubdtype(y.dtype, np.integer) else half_squared_error
    params = [np.asarray(kernel, np.float64), np.asarray(bias, np.float64)]
    moments, losses = [Moments(), Moments()], []
    for rows in steps:
        inputs = np.asarray(x[rows], np.float64)
        loss, error = criterion(inputs @ params[0] + params[1], y[rows])
        losses.append(loss)
        for i, gradient in enumerate([inputs.T @ error, error.sum(axis=0)]):
            params[i], moments[i] = step(params[i], gradient, moments[i], learning_rate, optimizer)
    return Trained(params[0], params[1], float(np.mean(losses)))
