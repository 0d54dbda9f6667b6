"""FedJAX driver: ``federated_averaging`` on the jit backend, with a Haiku network."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

# FedJAX 0.0.17 uses the name of 2023.
jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
import fedjax  # noqa: E402

from benchmarks.drivers.protocol import serve  # noqa: E402
from benchmarks.workloads import Weights, Workload, read_data, read_weights  # noqa: E402


def _network(workload: Workload, x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32) * (2 / 255) - 1
    last = len(workload.layers) - 1
    for i, (kind, parameter) in enumerate(workload.layers):
        if kind == "pool":
            x = hk.max_pool(x, (1, parameter, parameter, 1), (1, parameter, parameter, 1), "VALID")
        elif kind == "conv":
            x = hk.Conv2D(parameter, workload.kernel, padding="VALID")(x)
        else:
            x = hk.Linear(parameter)(x.reshape(x.shape[0], -1))
        if kind != "pool" and i < last:
            x = jax.nn.relu(x)
    return x


class FedJax:
    """FedAvg in FedJAX."""

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        self.workload, self.round = workload, 0
        self.device = jax.devices()[0].device_kind
        x, y = read_data(data)
        self.clients = [
            fedjax.ClientDataset({"x": x[workload.rows(k)], "y": y[workload.rows(k)]})
            for k in range(workload.clients)
        ]
        model = fedjax.create_model_from_haiku(
            hk.transform(lambda batch: _network(workload, batch["x"])),
            {"x": x[:1], "y": y[:1]},
            lambda batch, outputs: optax.softmax_cross_entropy_with_integer_labels(
                outputs, batch["y"]
            ),
        )
        # Without dropout the model needs no key, which would cost time.
        optimizer = {"adam": fedjax.optimizers.adam, "sgd": fedjax.optimizers.sgd}
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            fedjax.model_grad(model),
            optimizer[workload.optimizer](workload.learning_rate),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch, num_epochs=workload.epochs),
        )
        # Get only the names: initial weights would cost a compilation and be discarded.
        self.names = list(jax.eval_shape(model.init, jax.random.PRNGKey(0)))
        self.state = self.algorithm.init(
            {
                name: {"w": jnp.asarray(kernel), "b": jnp.asarray(bias)}
                for name, (kernel, bias) in zip(self.names, read_weights(weights), strict=True)
            }
        )
        self.key = jax.random.PRNGKey(0)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            cohort = [(k, self.clients[k], self.key) for k in self.workload.cohort_of(self.round)]
            self.state, _ = self.algorithm.apply(self.state, cohort)
            self.round += 1
        jax.block_until_ready(self.state.params)

    def weights(self) -> Weights:
        layers = (self.state.params[name] for name in self.names)
        return [(np.asarray(layer["w"]), np.asarray(layer["b"])) for layer in layers]


if __name__ == "__main__":
    serve(FedJax, "fedjax", "jax")
