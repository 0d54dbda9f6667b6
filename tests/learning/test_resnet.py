"""ResNet-18: its layers by number, its forward pass against NumPy, and a round of training."""

import functools

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, Learning, SimConfig, simulate
from pause_jax.config import validate
from pause_jax.learning import Dataset, ResNet18
from pause_jax.policies import Random
from pause_jax.privacy import NoPrivacy
from tests.reference.resnet import ResNet

pytestmark = pytest.mark.slow

# Colour images of odd size: a stride of 2 meets both an odd and an even number of pixels.
IMAGES = np.random.default_rng(0).standard_normal((3, 9, 6, 3)).astype(np.float32)


def count(tree) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def shapes(model: ResNet18, *shape: int):
    images = np.zeros((1, *shape), np.float32)
    return jax.eval_shape(model.module(10).init, jax.random.key(0), images)


def test_its_layers_have_the_published_numbers_of_weights():
    tree = shapes(ResNet18(norm="batch"), 32, 32, 3)
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


@pytest.mark.parametrize("norm", ["group", "none"])
def test_without_running_statistics_all_weights_are_released_ones(norm):
    tree = shapes(ResNet18(norm=norm), 32, 32, 3)
    assert set(tree) == {"params"}
    assert count(tree) == 11_173_962 - (9_600 if norm == "none" else 0)


@pytest.mark.parametrize("shape", [(64, 48, 3), (1, 1, 2)])
def test_images_of_any_size_will_do(shape):
    module, images = ResNet18(width=8).module(4), np.zeros((3, *shape), np.float32)
    outputs, tree = jax.eval_shape(module.init_with_output, jax.random.key(0), images)
    assert outputs.shape == (3, 4)
    assert tree["params"]["output"]["kernel"].shape == (64, 4)


@functools.cache
def drawn(norm: str, form: str):
    """(variables of no special values, a jitted pass)."""
    module = ResNet18(width=8, norm=norm, convolution=form).module(5)
    rng = np.random.default_rng(2)

    def fill(path, leaf):
        if leaf.ndim > 1:
            values = rng.standard_normal(leaf.shape) / np.sqrt(np.prod(leaf.shape[:-1]))
        else:
            values = rng.uniform(-0.5, 0.5, leaf.shape) + (path[-1].key in ("scale", "var"))
        return np.asarray(values, np.float32)

    tree = jax.eval_shape(module.init, jax.random.key(1), IMAGES)
    variables = jax.tree_util.tree_map_with_path(fill, tree)
    kept = [name for name in variables if name == "batch_stats"]

    @functools.partial(jax.jit, static_argnums=0)
    def run(train, variables, images, mask):
        return module.apply(variables, images, train=train, mask=mask, mutable=kept)

    return variables, run


def check_pass(norm: str, form: str, train: bool, images: np.ndarray, mask: np.ndarray) -> None:
    """Compare outputs and running statistics of the images of the mask with NumPy's."""
    variables, run = drawn(norm, form)
    reference = ResNet(variables, norm, train)
    expected = reference.outputs(images[mask])
    outputs, changed = jax.device_get(run(train, variables, images, mask))
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(outputs[mask], expected, rtol=1e-3, atol=1e-4)
    assert len(reference.seen) == (20 if norm == "batch" and train else 0)
    for place, (mean, var) in reference.seen.items():
        tree = changed["batch_stats"]
        for name in filter(None, place.split("/")):
            tree = tree[name]
        np.testing.assert_allclose(tree["statistics"]["mean"], mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(tree["statistics"]["var"], var, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("norm", "form", "train"),
    [
        ("batch", "xla", True),
        ("batch", "xla", False),
        ("none", "products", True),
        ("group", "xla", True),
    ],
)
def test_the_forward_pass_is_that_of_numpy(norm, form, train):
    check_pass(norm, form, train, IMAGES, np.asarray([True] * 3))


def test_rows_that_fill_up_a_batch_stay_out_of_batch_statistics():
    padded = np.concatenate([IMAGES[:2], 7 + IMAGES[:1]])
    check_pass("batch", "xla", True, padded, np.asarray([True, True, False]))


def test_a_round_moves_every_layer():
    config = SimConfig(
        num_clients=2,
        num_selected=1,
        num_rounds=1,
        policy=Random(),
        privacy=NoPrivacy(),
        track_regret=False,
        learning=Learning(
            model=ResNet18(width=8, norm="batch", convolution="xla"),
            batch_size=3,
            optimizer="sgd",
        ),
    )
    pixels = np.random.default_rng(0).integers(256, size=(8, 8, 8, 1), dtype=np.uint8)
    data = Dataset.of(pixels, np.arange(8), pixels, np.arange(8))
    result, still = (
        simulate(
            config.override({"learning.learning_rate": rate}),
            jax.random.key(0),
            data,
            client_batch=1,
            record=("clock",),
        )
        for rate in (0.1, 1e-30)
    )
    after, before = jax.device_get((result.variables, still.variables))
    # Statistics start at 0 and 1, and move without a rate.
    before["batch_stats"] = jax.tree.map(np.round, before["batch_stats"])
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), after, before)
    assert all(jax.tree.leaves(moved)), moved
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert {name.split("/")[0] for name in result.unnoised} == {"batch_stats", "clear"}


@pytest.mark.parametrize(("width", "advice"), [(12, "Use 8"), (4, "Use 8"), (20, "Use 16")])
def test_a_width_that_group_norm_cannot_have_is_one_message(width, advice):
    config = SimConfig(learning=Learning(model=ResNet18(width=width)))
    with pytest.raises(ConfigError, match=rf"learning\.model\.width = {width}: .*{advice}"):
        validate(config)
    validate(config.override({"learning.model.norm": "batch"}))
