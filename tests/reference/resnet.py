"""The forward pass of ResNet-18 for small images, one output pixel at a time, in float64 NumPy.

Written from He et al. (2016), Table 1 and Figs. 2 and 5 (left), with the 3x3 stem of their section
4.2. ``variables`` are those of the model, by the names that it gives its layers.
"""

from __future__ import annotations

import numpy as np

STAGES = ((1, 1), (2, 1), (2, 1), (2, 1))


class ResNet:
    """A forward pass.

    Attributes:
      norm: ``batch``, ``group`` or ``none``.
      train: whether batch norm takes the statistics of the batch.
      seen: by layer, the running statistics (mean, var) after the pass, if it trains.
    """

    def __init__(self, variables, norm: str, train: bool):
        self.variables, self.norm, self.train = variables, norm, train
        self.seen: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def outputs(self, x):
        x = np.maximum(self.layer(np.asarray(x, np.float64), 1, "", "conv", "norm"), 0)
        for stage, strides in enumerate(STAGES):
            for i, stride in enumerate(strides):
                x = self.block(x, stride, f"stage_{stage}_block_{i}")
        features = x.reshape(len(x), -1, x.shape[-1]).mean(axis=1)
        output = self.of("params", "output")
        return features @ output["kernel"] + output["bias"]

    def block(self, x, stride: int, name: str):
        y = np.maximum(self.layer(x, stride, name, "conv_0", "norm_0"), 0)
        y = self.layer(y, 1, name, "conv_1", "norm_1")
        if "conv_shortcut" in self.of("params", name):
            x = self.layer(x, stride, name, "conv_shortcut", "norm_shortcut")
        return np.maximum(x + y, 0)

    def layer(self, x, stride: int, block: str, conv: str, norm: str):
        kernel = np.asarray(self.of("params", block, conv)["kernel"], np.float64)
        return self.normalised(convolved(x, kernel, stride), block, norm)

    def normalised(self, x, block: str, name: str):
        if self.norm == "none":
            return x
        if self.norm == "group":
            weights = self.of("params", block, name)
            return weights["scale"] * standardised_groups(x, groups=8) + weights["bias"]
        weights = self.of("clear", block, name)
        old = self.of("batch_stats", block, name)["statistics"]
        mean, var = np.asarray(old["mean"], np.float64), np.asarray(old["var"], np.float64)
        if self.train:
            values = x.reshape(-1, x.shape[-1])
            batch_mean = values.mean(axis=0)
            batch_var = ((values - batch_mean) ** 2).mean(axis=0)
            self.seen[f"{block}/{name}"] = (
                0.9 * mean + 0.1 * batch_mean,
                0.9 * var + 0.1 * batch_var,
            )
            mean, var = batch_mean, batch_var
        return weights["scale"] * (x - mean) / np.sqrt(var + 1e-5) + weights["bias"]

    def of(self, collection: str, *path: str):
        tree = self.variables[collection]
        for name in filter(None, path):
            tree = tree[name]
        return tree


def convolved(x, kernel, stride: int):
    """Zeros around the image, ``kernel // 2`` on every side; every ``stride``-th pixel of it."""
    size, edge = kernel.shape[0], kernel.shape[0] // 2
    padded = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    rows, columns = range(0, x.shape[1], stride), range(0, x.shape[2], stride)
    y = np.zeros((len(x), len(rows), len(columns), kernel.shape[-1]))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            window = padded[:, row : row + size, column : column + size]
            y[:, i, j] = np.tensordot(window, kernel, axes=3)
    return y


def standardised_groups(x, groups: int):
    """Each image's channels in groups, each group to mean 0 and variance 1."""
    y = np.empty_like(x)
    width = x.shape[-1] // groups
    for image in range(len(x)):
        for start in range(0, x.shape[-1], width):
            group = x[image, :, :, start : start + width]
            spread = np.sqrt(group.var() + 1e-6)
            y[image, :, :, start : start + width] = (group - group.mean()) / spread
    return y
