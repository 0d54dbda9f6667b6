"""Norms against the textbook, and their gradients beside those of Flax's layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.learning.normalisation import BATCH, Pool, normalise, standardised
from tests.support.arrays import assert_near, draw

LAYERS = {
    "batch": (BATCH, nn.BatchNorm(use_running_average=False)),
    "group": (Pool(4, epsilon=1e-6), nn.GroupNorm(num_groups=4)),
    "layer": (Pool(1, epsilon=1e-6), nn.GroupNorm(num_groups=1)),
}
SHAPE = (5, 4, 3, 8)


def case():
    """Images, the weights of two clients, a direction of the gradient, and which rows count."""
    rng = np.random.default_rng(0)
    x, direction = 2 + 3 * rng.standard_normal((2, 2, *SHAPE))
    scale, bias = rng.uniform(0.5, 1.5, (2, 8)), rng.standard_normal((2, 8))
    return x, scale, bias, direction, np.asarray([1.0, 1, 0, 1, 1])


def ours(pool, weight):
    return lambda x, scale, bias: standardised(pool, x, scale, bias, weight)[0]


def flaxs(kind, weight):
    layer, mask = LAYERS[kind][1], weight.astype(bool)[:, None, None, None]

    def norm(x, scale, bias):
        variables = {"params": {"scale": scale, "bias": bias}}
        if kind != "batch":
            return layer.apply(variables, x)
        statistics = {"mean": jnp.zeros(8), "var": jnp.ones(8)}
        variables["batch_stats"] = statistics
        return layer.apply(variables, x, mask=mask, mutable=["batch_stats"])[0]

    return norm


def value_and_gradients(norm, x, scale, bias, direction):
    """Of two clients side by side: [2, ...] each."""

    def along(*of, direction):
        y = norm(*of)
        return jnp.sum(y * direction), y

    def one(x, scale, bias, direction):
        gradients, y = jax.grad(along, argnums=(0, 1, 2), has_aux=True)(
            x, scale, bias, direction=direction
        )
        return (y, *gradients)

    return jax.device_get(jax.jit(jax.vmap(one))(x, scale, bias, direction))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values_and_gradients_match_flax(kind, dtype):
    with jax.enable_x64(dtype == "float64"):
        *arrays, weight = (np.asarray(a, dtype) for a in case())
        weight = weight if kind == "batch" else np.ones_like(weight)
        found = value_and_gradients(ours(LAYERS[kind][0], weight), *arrays)
        expected = value_and_gradients(flaxs(kind, weight), *arrays)
    for actual, right in zip(found, expected, strict=True):
        assert actual.dtype == right.dtype == dtype
        tolerance = 1e-12 if dtype == "float64" else 1e-6
        assert np.abs(actual - right).max() <= tolerance * np.abs(right).max()


class Normalised(nn.Module):
    """One layer of norm."""

    norm: str

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        return normalise(x, self.norm, "norm", train, mask)


@pytest.mark.parametrize("shape", [(6, 3, 2, 16), (6, 16)])
def test_running_statistics_match_the_textbook_and_ignore_padding(shape):
    module = Normalised("batch")
    variables = jax.jit(module.init)(jax.random.key(0), np.zeros(shape, np.float32))
    axes, keep = tuple(range(len(shape) - 1)), np.asarray([1, 1, 0, 1, 1, 0], bool)
    scale, bias = draw(1, 16), draw(2, 16)
    clear = {"norm": {"scale": np.float32(scale), "bias": np.float32(bias)}}
    variables = {**variables, "clear": clear}
    mean, var = np.zeros(16), np.ones(16)
    apply = jax.jit(
        lambda variables, x: module.apply(variables, x, True, keep, mutable=["batch_stats"])
    )
    for step in range(6):
        x = 2 + 3 * draw(10 + step, *shape)
        x[~keep] = 1e3  # what fills up a batch
        y, changed = apply(variables, np.float32(x))
        variables = {**variables, **changed}
        of_batch = x[keep].mean(axis=axes), x[keep].var(axis=axes)
        mean, var = 0.9 * mean + 0.1 * of_batch[0], 0.9 * var + 0.1 * of_batch[1]
        expected = scale * (x[keep] - of_batch[0]) / np.sqrt(of_batch[1] + 1e-5) + bias
        assert_near(np.asarray(y)[keep], expected, 1e-5)
    statistics = variables["batch_stats"]["norm"]["statistics"]
    assert_near(dict(statistics), {"mean": mean, "var": var}, 1e-5)
    predicted = jax.jit(module.apply)(variables, np.float32(x))
    assert_near(predicted, scale * (x - mean) / np.sqrt(var + 1e-5) + bias, 1e-5)
    # Statistics of all rows would be far from these.
    assert np.abs(x.mean(axis=axes) - mean).min() > 100
