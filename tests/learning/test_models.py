"""The library's models: numbers of weights, initial values, and steps against plain Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError, Learning, SimConfig
from pause_jax.config import validate
from pause_jax.learning import Cnn2, Cnn3, Linear, Mlp, ResNet18
from pause_jax.learning.models import Model, linen_network
from tests.support.arrays import assert_near, draw

pytestmark = pytest.mark.slow

IMAGE_28 = np.zeros((1, 28, 28, 1), np.float32)
IMAGE_32 = np.zeros((1, 32, 32, 3), np.float32)


def count(tree) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def shapes_of(model: Model, x: np.ndarray):
    """The variables' shapes, without running or compiling anything."""
    return jax.eval_shape(model.module(10).init, jax.random.key(0), x)


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


def test_cnn3_with_batch_norm_matches_the_authors_network():
    shapes = shapes_of(Cnn3(norm="batch"), IMAGE_32)
    assert {name: count(layer) for name, layer in shapes["params"].items()} == CNN3
    assert {name: count(layer) for name, layer in shapes["clear"].items()} == NORMS
    assert {name: count(layer) for name, layer in shapes["batch_stats"].items()} == NORMS
    assert set(shapes) == {"params", "clear", "batch_stats"}
    assert count(shapes["params"]) + count(shapes["clear"]) == 170_474


def test_cnn2_has_the_published_number_of_parameters():
    # 1,206,590 for the 62 classes of EMNIST (Reddi et al., 2021, Table 4).
    assert count(jax.eval_shape(Cnn2().module(62).init, jax.random.key(0), IMAGE_28)) == 1_206_590


@pytest.mark.parametrize("model", [Linear(), Mlp(hidden=(7,)), Cnn2(), Cnn3()])
def test_output_has_one_row_per_sample(model):
    x, initial = np.zeros((3, 32, 32, 3), np.float32), model.module(1).init_with_output
    found, variables = jax.eval_shape(initial, jax.random.key(0), x)
    assert found.shape == (3, 1)
    assert set(variables) == {"params"}, "all weights are released with noise"


def test_mlp_matches_relu_layers_in_numpy():
    params = jax.device_get(jax.jit(Mlp().module(10).init)(jax.random.key(0), IMAGE_28))["params"]
    x = draw(5, 4, 28, 28, 1).astype(np.float32)
    hidden = x.reshape(4, -1)
    for name in ("hidden_0", "hidden_1"):
        hidden = np.maximum(hidden @ params[name]["kernel"] + params[name]["bias"], 0)
    expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    actual = jax.jit(Mlp().module(10).apply)({"params": params}, x)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- ResNet-18


def test_resnet18_layers_have_the_published_sizes():
    tree = shapes_of(ResNet18(norm="batch"), IMAGE_32)
    assert count(tree["params"]) + count(tree["clear"]) == 11_173_962
    assert count(tree["clear"]) == count(tree["batch_stats"]) == 9_600
    part = {
        name: count(tree["params"][name]) + count(tree["clear"].get(name, {}))
        for name in tree["params"]
    }
    assert part.pop("conv") + count(tree["clear"]["norm"]) == 3 * 9 * 64 + 2 * 64
    assert part.pop("output") == 512 * 10 + 10
    # Two 3x3 convolutions and two norms a block; a 1x1 convolution and a norm where widths change.
    expected = {}
    for stage, (before, width) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)]):
        first = 9 * before * width + 9 * width**2 + 4 * width
        if before != width:
            first += before * width + 2 * width
        expected[f"stage_{stage}_block_0"] = first
        expected[f"stage_{stage}_block_1"] = 2 * 9 * width**2 + 4 * width
    assert part == expected


@pytest.mark.parametrize("shape", [(64, 48, 3), (1, 1, 2)])
def test_resnet18_accepts_images_of_any_size(shape):
    module, images = ResNet18(width=8).module(4), np.zeros((3, *shape), np.float32)
    outputs, tree = jax.eval_shape(module.init_with_output, jax.random.key(0), images)
    assert outputs.shape == (3, 4)
    assert tree["params"]["output"]["kernel"].shape == (64, 4)


@pytest.mark.parametrize(("width", "advice"), [(12, "Use 8"), (4, "Use 8"), (20, "Use 16")])
def test_width_indivisible_by_group_norm_gives_one_message(width, advice):
    config = SimConfig(learning=Learning(model=ResNet18(width=width)))
    with pytest.raises(ConfigError, match=rf"learning\.model\.width = {width}: .*{advice}"):
        validate(config)
    validate(config.override({"learning.model.norm": "batch"}))


# ---------------------------------------------------------------- against plain Flax


def plain_norm(norm, x, train, name):
    if norm == "batch":
        return nn.BatchNorm(not train, momentum=0.9, name=name)(x)
    return x if norm == "none" else nn.GroupNorm(8 if x.ndim > 2 else 1, name=name)(x)


def as_in_pytorch(cls, fan_in, *sizes, **options):
    """A layer of plain Flax with PyTorch's default initial weights."""
    kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
    bound = fan_in**-0.5

    def bias_init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return cls(*sizes, kernel_init=kernel_init, bias_init=bias_init, **options)


class PlainCnn3(nn.Module):
    """The authors' network with its six norms in plain Flax."""

    norm: str

    @nn.compact
    def __call__(self, x, train):
        def norm(x, i):
            return plain_norm(self.norm, x, train, f"norm_{i}")

        for i, width in enumerate((32, 64, 128)):
            kernel = {"padding": "VALID", "name": f"conv_{i}"}
            x = as_in_pytorch(nn.Conv, 9 * x.shape[-1], width, (3, 3), **kernel)(x)
            x = norm(nn.relu(nn.max_pool(x, (2, 2), strides=(2, 2))), i)
        x = x.reshape(len(x), -1)
        for i, width in enumerate((128, 64, 32)):
            x = as_in_pytorch(nn.Dense, x.shape[-1], width, name=f"hidden_{i}")(x)
            x = norm(nn.relu(x), 3 + i)
        return as_in_pytorch(nn.Dense, x.shape[-1], 10, name="output")(x)


def test_initial_weights_of_cnn3_match_plain_flax():
    x = draw(0, 2, 32, 32, 3).astype(np.float32)
    ours, plain = Cnn3(norm="none").module(10), PlainCnn3("none")
    initial = jax.jit(lambda key, x: (ours.init(key, x), plain.init(key, x, False)))
    jax.tree.map(np.testing.assert_array_equal, *initial(jax.random.key(1), x))


class PlainBlock(nn.Module):
    """The basic block of He et al. (2016), Fig. 5 (left)."""

    features: int
    stride: int
    norm: str

    @nn.compact
    def __call__(self, x, train):
        def layer(x, size, stride, name):
            edge = (size // 2, size // 2)
            x = nn.Conv(
                *(self.features, (size, size), (stride, stride), (edge, edge)),
                use_bias=False,
                name=f"conv_{name}",
            )(x)
            return plain_norm(self.norm, x, train, f"norm_{name}")

        y = layer(nn.relu(layer(x, 3, self.stride, 0)), 3, 1, 1)
        if x.shape[-1] != self.features or self.stride > 1:
            x = layer(x, 1, self.stride, "shortcut")
        return nn.relu(x + y)


class PlainResNet18(nn.Module):
    """ResNet-18 with a 3x3 stem, of width 8, in plain Flax."""

    norm: str

    @nn.compact
    def __call__(self, x, train):
        edge = ((1, 1), (1, 1))
        x = nn.Conv(8, (3, 3), padding=edge, use_bias=False, name="conv")(x)
        x = nn.relu(plain_norm(self.norm, x, train, "norm"))
        for stage, first in enumerate((1, 2, 2, 2)):
            for i, stride in enumerate((first, 1)):
                block = PlainBlock(8 * 2**stage, stride, self.norm, name=f"stage_{stage}_block_{i}")
                x = block(x, train)
        return nn.Dense(10, name="output")(x.mean(axis=(1, 2)))


def merged(one, other):
    """Two nested dictionaries in one."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one
    both = {name: merged(one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}


def in_plain_flax(tree):
    """Scales and biases among the other parameters, statistics as of one ``nn.BatchNorm``."""

    def flat(tree):
        if set(tree) == {"statistics"}:
            return tree["statistics"]
        return {name: flat(value) for name, value in tree.items()}

    params = merged(tree["params"], tree.get("clear", {}))
    return {"params": params} | (
        {"batch_stats": flat(tree["batch_stats"])} if tree.get("batch_stats") else {}
    )


LABELS = np.asarray([3, 7, 3])


def loss_of(outputs):
    return -jnp.mean(jax.nn.log_softmax(outputs[:3])[jnp.arange(3), LABELS])


def random_variables(module, x):
    """Of no special values, float64."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    rng = np.random.default_rng(3)

    def fill(path, leaf):
        if path[-1].key in ("scale", "var"):
            return rng.uniform(0.5, 1.5, leaf.shape)
        spread = 0.1 if len(leaf.shape) == 1 else np.prod(leaf.shape[:-1]) ** -0.5
        return spread * rng.standard_normal(leaf.shape)

    return jax.tree_util.tree_map_with_path(fill, dict(shapes))


def networks(kind, norm):
    """(images, model, variables, what plain Flax makes of them)."""
    plain, model, size = {
        "cnn3": (PlainCnn3(norm), Cnn3(norm=norm), (22, 24)),
        "resnet18": (PlainResNet18(norm), ResNet18(width=8, norm=norm), (9, 6)),
    }[kind]
    x = draw(4, 3, *size, 3)
    variables = random_variables(model.module(10), x)

    def loss(params, rest):
        y, changed = plain.apply({"params": params, **rest}, x, True, mutable=["batch_stats"])
        return loss_of(y), (y, changed)

    start = in_plain_flax(variables)
    params = start.pop("params")
    gradient, (y, changed) = jax.jit(jax.grad(loss, has_aux=True))(params, start)
    evaluated = jax.jit(lambda params, rest: plain.apply({"params": params, **rest}, x, False))
    expected = jax.device_get({"params": gradient, **changed})
    return x, model, variables, (y, expected, evaluated(params, start))


@pytest.mark.parametrize(
    ("kind", "form", "norm"),
    [
        *(("cnn3", "products", norm) for norm in ("batch", "group")),
        pytest.param("resnet18", "direct", "batch", marks=pytest.mark.nightly),
    ],
)
def test_networks_match_plain_flax_in_training_and_evaluation(kind, form, norm):
    with jax.enable_x64(True):
        x, model, variables, (y, expected, evaluated) = networks(kind, norm)
        network = linen_network(model.replace(convolution=form).module(10), draws=False)
        padded = np.concatenate([x, 50 + x[:2]])
        mask = np.asarray([True] * 3 + [False] * 2)

        def loss(trained):
            outputs, changed = network.train({**variables, **trained}, padded, mask, None)
            return loss_of(outputs), (outputs, changed)

        trained = {name: variables[name] for name in ("params", "clear") if name in variables}
        found, (outputs, changed) = jax.jit(jax.grad(loss, has_aux=True))(trained)
        assert outputs.dtype == np.float64
        assert_near(outputs[:3], y, 1e-10)
        actual = in_plain_flax(jax.device_get({**found, **changed}))
        assert_near(actual, expected, 1e-10)
        assert_near(jax.jit(network.predict)(variables, x), evaluated, 1e-10)
