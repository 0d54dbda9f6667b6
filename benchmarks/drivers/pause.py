"""Driver of pause_jax: the public ``simulate``, compiled for the rounds of one measurement.

A variant is a form of convolution (``products``, ``xla``), or the dtype of a custom Flax module
(``float32``, ``bfloat16``) with Flax's convolutions, because the library's models support only
float32. The library has no model with 5 x 5 convolutions. W5 uses a custom module that calls the
library's ``convolve`` and ``max_pool``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array

import pause_jax
from benchmarks.drivers.protocol import serve
from benchmarks.workloads import NUM_CLASSES, Weights, Workload, read_data, weighted_layers
from pause_jax.learning import Cnn2, Cnn3, Dataset, FlaxModel, Iid, Learning, Mlp, Model
from pause_jax.learning.convolution import convolve, max_pool
from pause_jax.policies import RoundRobin
from pause_jax.privacy import NoPrivacy

# Number of test samples. The library needs at least one, and evaluates them once, at the end.
NUM_TEST = 10


class Blocks(Iid):
    """Partition in which client k holds the k-th block of samples, as for all contenders."""

    name: ClassVar[str] = "blocks"
    summary: ClassVar[str] = "equal shares in the order of the data"

    def _assign(
        self, key: Array, data: Dataset, num_samples: int, num_clients: int
    ) -> tuple[Array, Array]:
        size = num_samples // num_clients
        return jnp.arange(size * num_clients), jnp.full(num_clients, size, jnp.int32)


# Uniform in +-1 / sqrt(fan in), like all first weights.
_FIRST = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Network(nn.Module):
    """Network of a workload in Flax; weights, updates and outputs are float32."""

    layers: tuple[tuple[str, int], ...]
    kernel: int
    kind: str = "float32"  # dtype of the computation
    form: str = ""  # form of convolution of the library; with "", Flax's convolution

    @nn.compact
    def __call__(self, x: Array) -> Array:
        last = len(self.layers) - 1
        how: dict[str, Any] = {"dtype": self.kind, "kernel_init": _FIRST}
        images = {"padding": "VALID", **how}
        if self.form:
            images["conv_general_dilated_cls"] = lambda: self._convolve
        for i, (layer, parameter) in enumerate(self.layers):
            if layer == "pool":
                x = max_pool(x) if self.form else nn.max_pool(x, (2, 2), (2, 2))
            elif layer == "conv":
                x = nn.Conv(parameter, (self.kernel, self.kernel), **images)(x)
            else:
                x = nn.Dense(parameter, **how)(x.reshape(x.shape[0], -1))
            if layer != "pool" and i < last:
                x = nn.relu(x)
        return x.astype(jnp.float32)

    def _convolve(self, x: Array, kernel: Array, *_: Any, **__: Any) -> Array:
        return convolve(self.form, x, kernel)


def model_of(workload: Workload, variant: str = "") -> Model:
    """Return our model of a workload's network; without a variant, in the backend's best form."""
    network = {"layers": workload.layers, "kernel": workload.kernel}
    if variant in ("float32", "bfloat16"):
        return FlaxModel.of(Network, kind=variant, **network)
    if workload.kernel != 3:
        return FlaxModel.of(Network, form=variant or "auto", **network)
    dense = tuple(width for kind, width in workload.layers if kind == "dense")
    convolutions = sum(kind == "conv" for kind, _ in workload.layers)
    form = variant or "auto"
    models: dict[int, Model] = {
        0: Mlp(hidden=dense[:-1]),
        2: Cnn2(convolution=form),
        3: Cnn3(norm="batch" if workload.normed else "none", convolution=form),
    }
    return models[convolutions]


def config_of(
    workload: Workload, model: Model, rounds: int, learning_rate: float
) -> pause_jax.SimConfig:
    """Return the config of rounds of a workload with a model of its network."""
    return pause_jax.SimConfig(
        num_clients=workload.clients,
        num_selected=workload.cohort,
        num_rounds=rounds,
        eval_every=rounds,
        track_regret=False,
        policy=RoundRobin(),
        privacy=NoPrivacy(),
        learning=Learning(
            partition=Blocks(),
            model=model,
            optimizer=workload.optimizer,
            learning_rate=learning_rate,
            batch_size=workload.batch,
            epochs=workload.epochs,
            max_steps=workload.steps,
        ),
    )


class Pause:
    """Driver that simulates from round 1 in each measurement; the key draws first weights."""

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        self.workload, self.key = workload, jax.random.key(0)
        self.model = model_of(workload, variant)
        self.device = jax.devices()[0].device_kind
        x, y = read_data(data)
        self.data = Dataset.of(x, y, x[:NUM_TEST], y[:NUM_TEST], num_classes=NUM_CLASSES)
        self.variables: Any = None

    def _simulate(self, rounds: int, learning_rate: float) -> pause_jax.Result:
        config = config_of(self.workload, self.model, rounds, learning_rate)
        return pause_jax.simulate(config, self.key, self.data)

    def run(self, rounds: int) -> None:
        result = self._simulate(rounds, self.workload.learning_rate)
        self.variables = jax.block_until_ready(result.variables)

    def weights(self) -> Weights:
        if self.variables is None:
            # A step this small changes no float32 weight, and thus reveals the first weights.
            self.variables = self._simulate(1, learning_rate=1e-30).variables
        layers = (layer for _, layer in sorted(self.variables["params"].items()))
        norms = (norm for _, norm in sorted(self.variables.get("clear", {}).items()))
        return [
            _arrays(next(norms), "scale") if kind == "norm" else _arrays(next(layers), "kernel")
            for kind, *_ in weighted_layers(self.workload)
        ]


def _arrays(layer: Any, first: str) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(layer[first]), np.asarray(layer["bias"])


if __name__ == "__main__":
    serve(Pause, "jax", "flax", "optax")
