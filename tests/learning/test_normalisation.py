"""Norms with gradients written out, beside Flax's layers, which JAX differentiates."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax.learning.normalisation import BATCH, Pool, standardised

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
def test_values_and_gradients_are_flaxs(kind, dtype):
    with jax.enable_x64(dtype == "float64"):
        *arrays, weight = (np.asarray(a, dtype) for a in case())
        weight = weight if kind == "batch" else np.ones_like(weight)
        found = value_and_gradients(ours(LAYERS[kind][0], weight), *arrays)
        expected = value_and_gradients(flaxs(kind, weight), *arrays)
    for actual, right in zip(found, expected, strict=True):
        assert actual.dtype == right.dtype == dtype
        tolerance = 1e-12 if dtype == "float64" else 1e-6
        assert np.abs(actual - right).max() <= tolerance * np.abs(right).max()


def test_a_row_that_fills_up_the_batch_does_not_enter_and_still_has_a_gradient():
    x, scale, bias, direction, weight = (np.asarray(a, np.float32) for a in case())
    other = x.copy()
    other[:, 2] = np.nan
    found, changed = (
        value_and_gradients(ours(BATCH, weight), each, scale, bias, direction)
        for each in (x, other)
    )
    kept = weight.astype(bool)
    np.testing.assert_array_equal(found[0][:, kept], changed[0][:, kept])
    assert np.abs(found[1][:, 2]).min() > 0


def test_the_statistics_are_those_of_the_rows_that_count():
    x, scale, bias, _, weight = case()
    single = (np.float32(a) for a in (x[0], scale[0], bias[0], weight))
    _, mean, variance = jax.device_get(jax.jit(standardised, static_argnums=0)(BATCH, *single))
    rows = x[0][weight.astype(bool)].reshape(-1, 8)
    np.testing.assert_allclose(mean[0], rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance[0], rows.var(0), rtol=1e-5)
