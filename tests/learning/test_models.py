import functools

import jax
import numpy as np
import pytest
import scipy.stats

from pause_jax.learning import Cnn2, Cnn3, Linear, Mlp
from pause_jax.learning.models import Model

pytestmark = pytest.mark.slow

IMAGE_28 = np.zeros((1, 28, 28, 1), np.float32)
IMAGE_32 = np.zeros((1, 32, 32, 3), np.float32)


def count(tree) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def shapes_of(model: Model, x: np.ndarray):
    """The variables' shapes, without running or compiling anything."""
    return jax.eval_shape(model.module(10).init, jax.random.key(0), x)


@functools.cache
def variables_of(model: Model, seed: int = 0):
    x = IMAGE_32 if isinstance(model, Cnn3) else IMAGE_28
    return jax.device_get(jax.jit(model.module(10).init)(jax.random.key(seed), x))


def test_mlp_has_the_authors_number_of_parameters():
    assert count(shapes_of(Mlp(hidden=(32, 16)), IMAGE_28)) == 25_818


# The authors' network, layer by layer: kernel and bias, and a scale and a bias of each norm.
CNN3 = {
    "conv_0": 3 * 3 * 3 * 32 + 32,
    "conv_1": 3 * 3 * 32 * 64 + 64,
    "conv_2": 3 * 3 * 64 * 128 + 128,
    "hidden_0": 512 * 128 + 128,
    "hidden_1": 128 * 64 + 64,
    "hidden_2": 64 * 32 + 32,
    "output": 32 * 10 + 10,
}
NORMS = {f"norm_{i}": 2 * width for i, width in enumerate((32, 64, 128, 128, 64, 32))}


def test_cnn3_with_batch_norm_is_the_authors_network():
    shapes = shapes_of(Cnn3(norm="batch"), IMAGE_32)
    assert {name: count(layer) for name, layer in shapes["params"].items()} == CNN3
    assert {name: count(layer) for name, layer in shapes["clear"].items()} == NORMS
    assert {name: count(layer) for name, layer in shapes["batch_stats"].items()} == NORMS
    assert set(shapes) == {"params", "clear", "batch_stats"}
    assert count(shapes["params"]) + count(shapes["clear"]) == 170_474


def test_cnn2_has_the_published_number_of_parameters():
    # 1,206,590 for the 62 classes of EMNIST (Reddi et al., 2021, Table 4).
    assert count(jax.eval_shape(Cnn2().module(62).init, jax.random.key(0), IMAGE_28)) == 1_206_590


@pytest.mark.parametrize(("norm", "layers"), [("group", CNN3 | NORMS), ("none", CNN3)])
def test_cnn3_without_running_statistics_has_parameters_only(norm, layers):
    shapes = shapes_of(Cnn3(norm=norm), IMAGE_32)
    assert set(shapes) == {"params"}
    assert {name: count(layer) for name, layer in shapes["params"].items()} == layers


def test_linear_is_one_affine_layer():
    shapes = shapes_of(Linear(), IMAGE_28)
    assert set(shapes["params"]) == {"output"}
    assert count(shapes) == 785 * 10


@pytest.mark.parametrize(
    "model", [Linear(), Mlp(), Mlp(hidden=(7,)), Cnn2(), Cnn3(), Cnn3(norm="none")]
)
@pytest.mark.parametrize("outputs", [1, 10])
def test_output_is_one_row_a_sample(model, outputs):
    x, initial = np.zeros((3, 32, 32, 3), np.float32), model.module(outputs).init_with_output
    found, _ = jax.eval_shape(initial, jax.random.key(0), x)
    assert found.shape == (3, outputs)


def layers(variables) -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """(kernel, bias, fan-in) of every dense and convolutional layer."""
    return {
        name: (
            np.ravel(layer["kernel"]),
            np.ravel(layer["bias"]),
            int(np.prod(layer["kernel"].shape[:-1])),
        )
        for name, layer in variables["params"].items()
        if "kernel" in layer
    }


@pytest.mark.parametrize("model", [Mlp(), Cnn3(norm="batch")])
def test_initial_kernels_are_uniform_within_one_over_root_fan_in(model):
    # What PyTorch does by default (kaiming_uniform with a = sqrt(5)).
    found = layers(variables_of(model))
    assert len(found) == (3 if isinstance(model, Mlp) else 7)
    for name, (kernel, _, fan_in) in found.items():
        bound = fan_in**-0.5
        uniform = scipy.stats.uniform(-bound, 2 * bound)
        assert np.abs(kernel).max() <= bound, name
        assert scipy.stats.kstest(kernel, uniform.cdf).pvalue > 1e-3, name


def test_kernel_test_rejects_other_bounds():
    kernel, _, fan_in = layers(variables_of(Mlp()))["hidden_0"]
    for wrong in (0.9, 1.1):
        bound = wrong * fan_in**-0.5
        uniform = scipy.stats.uniform(-bound, 2 * bound)
        assert scipy.stats.kstest(kernel, uniform.cdf).pvalue < 1e-6


def test_initial_biases_are_uniform_within_one_over_root_fan_in():
    scaled = np.concatenate(
        [
            bias * np.sqrt(fan_in)
            for model in (Mlp(), Cnn3(norm="batch"))
            for _, bias, fan_in in layers(variables_of(model)).values()
        ]
    )
    assert np.abs(scaled).max() <= 1
    assert scipy.stats.kstest(scaled, scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-3
    for wrong in (0.7, 1.3):
        uniform = scipy.stats.uniform(-wrong, 2 * wrong)
        assert scipy.stats.kstest(scaled, uniform.cdf).pvalue < 1e-3


def test_initial_values_depend_on_the_key():
    one, other = variables_of(Mlp()), variables_of(Mlp(), seed=1)
    assert not np.allclose(one["params"]["output"]["kernel"], other["params"]["output"]["kernel"])


def images(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((6, 32, 32, 3)).astype(np.float32)


@functools.partial(jax.jit, static_argnums=(0, 3))
def apply(model: Model, variables, x: np.ndarray, train: bool):
    return model.module(10).apply(variables, x, train=train, mutable=["batch_stats"])


def test_batch_norm_updates_its_statistics_in_training_and_uses_them_in_evaluation():
    model = Cnn3(norm="batch")
    variables = variables_of(model)
    trained, changed = jax.device_get(apply(model, variables, images(1), True))
    for name, layer in variables["batch_stats"].items():
        old, new = layer["statistics"], changed["batch_stats"][name]["statistics"]
        # Momentum 0.9, as PyTorch's 0.1: a tenth of the batch's statistics comes in.
        assert np.any(np.abs(new["mean"]) > 1e-3), name
        assert np.all(new["var"] >= 0.9 * old["var"]), name
        assert not np.allclose(new["var"], old["var"]), name
    evaluated, unchanged = apply(model, variables, images(1), False)
    jax.tree.map(np.testing.assert_array_equal, unchanged["batch_stats"], variables["batch_stats"])
    assert not np.allclose(trained, evaluated)


def test_group_norm_treats_each_image_alone_and_ignores_the_mode():
    model, batch = Cnn3(norm="group"), Cnn3(norm="batch")
    weights = variables_of(batch)
    variables = {"params": weights["params"] | weights["clear"]}
    x = images(1)
    outputs, _ = jax.device_get(apply(model, variables, x, True))
    np.testing.assert_allclose(outputs, apply(model, variables, x, False)[0], atol=1e-5)
    mixed = np.concatenate([x[:3], 5 * images(2)[3:]])
    together, _ = jax.device_get(apply(model, variables, mixed, True))
    np.testing.assert_allclose(together[:3], outputs[:3], atol=1e-4)
    one, other = (jax.device_get(apply(batch, weights, each, True)[0]) for each in (x, mixed))
    assert not np.allclose(one[:3], other[:3], atol=1e-4)


def test_mlp_is_relu_layers_in_numpy():
    params = variables_of(Mlp())["params"]
    x = np.random.default_rng(5).standard_normal((4, 28, 28, 1)).astype(np.float32)
    hidden = x.reshape(4, -1)
    for name in ("hidden_0", "hidden_1"):
        hidden = np.maximum(hidden @ params[name]["kernel"] + params[name]["bias"], 0)
    expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    actual = jax.jit(Mlp().module(10).apply)({"params": params}, x)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
