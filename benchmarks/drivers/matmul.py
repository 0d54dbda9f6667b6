"""Matrix-product rate of the machine in float32: the best of three sizes, in jitted JAX."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

from benchmarks.drivers.protocol import serve
from benchmarks.workloads import Weights, Workload

SIZES = (512, 1024, 2048)
# Products per measurement at size 1024; other sizes use the same number of operations.
REPEATS = 32


class MatMul:
    """Driver that reports floating point operations per second."""

    def __init__(self, workload: Workload, data: str, weights: str, variant: str):
        self.device = jax.devices()[0].device_kind
        self.product = jax.jit(jnp.matmul)
        keys = jax.random.split(jax.random.key(0), len(SIZES))
        self.matrices = [jax.random.normal(key, (n, n)) for key, n in zip(keys, SIZES, strict=True)]
        for matrix in self.matrices:
            self.product(matrix, matrix).block_until_ready()

    def run(self, rounds: int) -> float:
        return max(map(self._rate, self.matrices))

    def _rate(self, matrix: jax.Array) -> float:
        n = matrix.shape[0]
        count = max(1, round(REPEATS * (1024 / n) ** 3))
        start = time.perf_counter()
        for _ in range(count):
            product = self.product(matrix, matrix)
        product.block_until_ready()
        return 2 * n**3 * count / (time.perf_counter() - start)

    def weights(self) -> Weights:
        raise NotImplementedError


if __name__ == "__main__":
    serve(MatMul, "jax")
