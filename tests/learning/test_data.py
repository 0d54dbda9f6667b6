import os
import pathlib
import re
import sys
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError
from pause_jax.base.compilation import cache_folder
from pause_jax.learning import (
    Cifar10,
    Digits,
    FashionMnist,
    LinearRegression,
    Mnist,
    Tfds,
)
from pause_jax.learning import data as data_module
from pause_jax.learning import tensorflow_datasets as tfds_module
from pause_jax.learning.task import Classification, Regression, task_of

pytestmark = pytest.mark.slow


@pytest.fixture
def forget():
    """Each load of the test reads anew, and no array outlives it."""
    for load in (tfds_module._load, data_module._digits):
        load.cache_clear()
    yield
    for load in (tfds_module._load, data_module._digits):
        load.cache_clear()


@pytest.fixture
def empty_cache(monkeypatch, tmp_path, forget):
    """A cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(folder))
    return folder


def test_digits_match_scikit_learn():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    dataset = Digits().load()
    chex.assert_shape([dataset.x_train, dataset.x_test], [(1437, 8, 8, 1), (360, 8, 8, 1)])
    assert dataset.x_train.dtype == jnp.uint8
    assert dataset.pixel_max == 16
    images = np.concatenate([dataset.x_train, dataset.x_test])[..., 0]
    np.testing.assert_array_equal(images, bunch.images)
    np.testing.assert_array_equal(np.concatenate([dataset.y_train, dataset.y_test]), bunch.target)


def test_pixels_become_inputs_from_minus_one_to_one():
    dataset = Digits().load()
    inputs = np.asarray(dataset.to_input(dataset.x_train))
    assert inputs.dtype == np.float32
    assert (inputs.min(), inputs.max()) == (-1, 1)
    expected = (np.asarray(dataset.x_train) / 16 - 0.5) / 0.5
    np.testing.assert_allclose(inputs, expected, atol=1e-6)


def test_linear_regression_is_learnable_up_to_its_noise():
    config = LinearRegression(num_features=6, num_samples=500, noise=0.1)
    dataset = config.load()
    chex.assert_shape([dataset.x_train, dataset.x_test], [(500, 6), (100, 6)])
    assert isinstance(task_of(dataset), Regression)
    weights, *_ = np.linalg.lstsq(np.asarray(dataset.x_train), np.asarray(dataset.y_train))
    residual = np.asarray(dataset.x_test) @ weights - np.asarray(dataset.y_test)
    assert 0.07 < residual.std() < 0.13
    assert np.asarray(dataset.y_test).std() > 0.5
    np.testing.assert_allclose(np.asarray(dataset.x_train).mean(), 0, atol=0.1)
    np.testing.assert_allclose(np.asarray(dataset.x_train).std(), 1, atol=0.1)


def test_data_seed_fixes_the_synthetic_data():
    one, same, other = (LinearRegression(data_seed=seed).load() for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.x_train, same.x_train)
    np.testing.assert_array_equal(one.y_test, same.y_test)
    assert not np.allclose(one.y_train, other.y_train)


def test_smallest_linear_regression_has_a_test_sample():
    assert LinearRegression(num_samples=5).load().x_test.shape[0] == 1


@pytest.mark.nightly
def test_mnist_has_the_published_content(shared, forget):
    data = Mnist(data_dir=str(shared / "data" / "tfds")).load()
    inputs, labels = [data.x_train, data.x_test], [data.y_train, data.y_test]
    chex.assert_shape(inputs, [(60_000, 28, 28, 1), (10_000, 28, 28, 1)])
    chex.assert_shape(labels, [(60_000,), (10_000,)])
    chex.assert_type(inputs, jnp.uint8)
    chex.assert_type(labels, jnp.int32)
    assert (data.pixel_max, data.num_classes) == (255, 10)
    assert isinstance(task_of(data), Classification)
    pixels = np.asarray(data.x_train)
    assert (pixels.min(), pixels.max()) == (0, 255)
    assert pixels.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    zero_to_nine = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    np.testing.assert_array_equal(np.bincount(data.y_train), zero_to_nine)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("config", "shape", "means"),
    [
        (FashionMnist(), (28, 28, 1), [0.2868]),  # files of MNIST have the same names
        (Cifar10(), (32, 32, 3), [0.4942, 0.4851, 0.4504]),
    ],
)
def test_real_data_set_is_decoded_once_and_then_cached(
    shared, empty_cache, monkeypatch, config, shape, means
):
    """By its 10,000 test images: to decode all of it takes 20 seconds."""
    assert config.source == Tfds(dataset=config.name).source
    folder = str(shared / "data" / "tfds")
    config = Tfds(dataset=config.name, train="test", test=None, data_dir=folder)
    first = config.load()
    assert (len(first.x_train), first.x_train.shape[1:], first.num_classes) == (8000, shape, 10)
    labels = np.concatenate([first.y_train, first.y_test])
    np.testing.assert_array_equal(np.bincount(labels), 10 * [1000])
    pixels = np.concatenate([first.x_train, first.x_test]) / 255
    np.testing.assert_allclose(pixels.mean(axis=(0, 1, 2)), means, atol=1e-4)
    tfds_module._load.cache_clear()
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # an import now fails
    jax.tree.map(np.testing.assert_array_equal, first, config.load())


class Source:
    """tensorflow-datasets, as far as it is used: three images of a value, two for testing."""

    def __init__(self):
        self.opened, self.value, self.labels = 0, 0, SimpleNamespace(num_classes=10)

    def data_source(self, name, data_dir, download, builder_kwargs):
        self.opened += 1
        features = {"label": self.labels, "image": None}
        return {
            split: Split(number, self.value, features)
            for split, number in (("train", 3), ("test", 2))
        }


class Split:
    """The records of a split."""

    def __init__(self, number, value, features):
        self.number, self.value = number, value
        self.dataset_info = SimpleNamespace(features=features)

    def __len__(self):
        return self.number

    def __getitems__(self, places):
        image = np.full((2, 2, 1), self.value, np.uint8)
        return [{"image": image, "label": place} for place in places]


@pytest.fixture
def source(empty_cache, monkeypatch, tmp_path):
    """(a stand-in for tensorflow-datasets, the folder in which it has prepared MNIST)."""
    stand_in = Source()
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", stand_in)
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    (tmp_path / "data" / "mnist" / "record").write_text("0")
    return stand_in, str(tmp_path / "data")


def test_second_load_reads_nothing_unless_the_folder_changed(source, empty_cache):
    stand_in, folder = source
    for _ in range(2):
        assert Mnist(data_dir=folder).load().x_train.max() == 0
        assert stand_in.opened == 1
    (file,) = empty_cache.iterdir()
    assert re.fullmatch(r"mnist-[0-9a-f]{16}\.npz", file.name)
    tfds_module._load.cache_clear()  # another process
    assert Mnist(data_dir=folder).load().x_train.max() == 0
    assert stand_in.opened == 1
    stand_in.value = 7
    (pathlib.Path(folder) / "mnist" / "record").write_text("mended")
    assert Mnist(data_dir=folder).load().x_train.max() == 7
    assert stand_in.opened == 2


def _flipped(content):
    """With other bits in the middle, of which the file's checksum knows."""
    middle = len(content) // 4
    return content[:middle] + bytes([255 - content[middle]]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda c: b"", lambda c: c[: len(c) // 2], lambda c: b"no zip", _flipped]
)
def test_damaged_cache_is_reported_and_decoded_again(source, empty_cache, damage):
    stand_in, folder = source
    stand_in.value = 7
    Mnist(data_dir=folder).load()
    (file,) = empty_cache.glob("*.npz")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    tfds_module._load.cache_clear()  # another process
    with pytest.warns(UserWarning, match="is damaged") as said:
        assert Mnist(data_dir=folder).load().x_train.max() == 7
    (notice,) = said
    assert str(notice.message).startswith(f"{file} is damaged")
    assert stand_in.opened == 2
    assert file.read_bytes()[:2] == b"PK"
    tfds_module._load.cache_clear()
    assert Mnist(data_dir=folder).load().x_train.max() == 7
    assert stand_in.opened == 2, "the file is whole again"


def test_default_folder_is_that_of_tensorflow_datasets(source, monkeypatch):
    _, folder = source
    monkeypatch.setenv("TFDS_DATA_DIR", folder)
    assert len(Mnist().load().y_train) == 3
    monkeypatch.setenv("TFDS_DATA_DIR", os.path.join(folder, "other"))
    with pytest.raises(ConfigError, match=r"data_dir = None.*does not exist"):
        Mnist().load()


def test_any_tensorflow_data_set_loads_by_name(source):
    _, folder = source
    named, own = Tfds(dataset="mnist", data_dir=folder).load(), Mnist(data_dir=folder).load()
    for one, other in zip(jax.tree.leaves(named), jax.tree.leaves(own), strict=True):
        np.testing.assert_array_equal(one, other)
    assert named.num_classes == 10
    drawn = Tfds(dataset="mnist", data_dir=folder, test=None, num_train=1).load()
    assert (len(drawn.y_train), len(drawn.y_test)) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": "all"}, r"no split 'all' \(splits: 'train', 'test'"),
        ({"inputs": "picture"}, r"no feature 'picture' \(features: 'image', 'label'"),
        ({"labels": "class"}, "no feature 'class'"),
        ({"dataset": "other"}, "does not contain the data set"),
    ],
)
def test_wrong_tensorflow_data_set_names_are_refused(source, changes, words):
    with pytest.raises(ConfigError, match=words):
        Tfds(data_dir=source[1], **changes).load()


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("PAUSE_JAX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "pause_jax"


@pytest.mark.parametrize("there", ["", "data", "data/mnist", "data/mnist/3.0.1"])
def test_folder_without_the_data_set_gives_one_clear_error(empty_cache, tmp_path, there):
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    folder = str(tmp_path / "data")
    with pytest.raises(ConfigError, match="does not exist" if not there else "mnist") as error:
        Mnist(data_dir=folder).load()
    message = str(error.value)
    assert message.startswith(f"learning.data.data_dir = {folder!r}: cannot read mnist")
    assert "digits" in message
    assert "\n" not in message
    assert not empty_cache.exists(), "a failed load must leave no cache behind"


def test_folder_without_the_data_set_is_refused_despite_the_cache(source, tmp_path):
    Mnist(data_dir=source[1]).load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="data_dir"):
        Mnist(data_dir=str(tmp_path / "empty")).load()


def test_missing_tensorflow_datasets_gives_one_clear_error(empty_cache, monkeypatch, tmp_path):
    (tmp_path / "mnist").mkdir()
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ConfigError, match="ModuleNotFoundError") as error:
        Mnist(data_dir=str(tmp_path)).load()
    assert "pip install" in str(error.value)
    assert "digits" in str(error.value)


def test_digits_are_cached_and_an_unwritable_cache_only_warns(empty_cache, monkeypatch, tmp_path):
    first = Digits().load()
    assert len(list(empty_cache.glob("digits-*.npz"))) == 1
    data_module._digits.cache_clear()
    again = Digits().load()
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    data_module._digits.cache_clear()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(tmp_path / "file" / "folder"))
    with pytest.warns(UserWarning, match="cannot be written.*PAUSE_JAX_CACHE"):
        data = Digits().load()
    np.testing.assert_array_equal(data.x_test, first.x_test)
