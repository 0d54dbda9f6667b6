import pathlib
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import ConfigError
from pause_jax.cache import cache_folder
from pause_jax.learning import Cifar10, Dataset, Digits, FashionMnist, LinearRegression, Mnist
from pause_jax.learning import data as data_module
from pause_jax.learning.data import Tfds

TFDS = {
    # Number and shape of the images, and the mean pixel in [0, 1] of each channel.
    Mnist: (60_000, (28, 28, 1), [0.1307]),
    FashionMnist: (60_000, (28, 28, 1), [0.2860]),
    Cifar10: (50_000, (32, 32, 3), [0.4914, 0.4822, 0.4465]),
}


@pytest.fixture
def forget():
    """Each load of the test reads anew, and no array outlives it."""
    for load in (data_module._tfds, data_module._digits):
        load.cache_clear()
    yield
    for load in (data_module._tfds, data_module._digits):
        load.cache_clear()


@pytest.fixture
def empty_cache(monkeypatch, tmp_path, forget):
    """A cache folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(folder))
    return folder


def assert_images(dataset: Dataset, config: type[Tfds]) -> None:
    number, shape, _ = TFDS[config]
    inputs, labels = [dataset.x_train, dataset.x_test], [dataset.y_train, dataset.y_test]
    chex.assert_shape(inputs, [(number, *shape), (10_000, *shape)])
    chex.assert_shape(labels, [(number,), (10_000,)])
    chex.assert_type(inputs, jnp.uint8)
    chex.assert_type(labels, jnp.int32)
    assert (dataset.pixel_max, dataset.num_classes) == (255, 10)
    assert dataset.task == "classification"
    pixels = np.asarray(dataset.x_train)
    assert (pixels.min(), pixels.max()) == (0, 255)


def assert_contents(dataset: Dataset, config: type[Tfds]) -> None:
    """The published mean pixel of each channel, and the published number of each label."""
    number, _, means = TFDS[config]
    pixels = np.asarray(dataset.x_train)
    np.testing.assert_allclose(pixels.mean(axis=(0, 1, 2)) / 255, means, atol=1e-4)
    per_label = np.bincount(dataset.y_train, minlength=10)
    if config is Mnist:
        zero_to_nine = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        np.testing.assert_array_equal(per_label, zero_to_nine)
    else:
        np.testing.assert_array_equal(per_label, number // 10)


@pytest.fixture(scope="module")
def fashion(shared, tmp_path_factory):
    """(data set decoded without a cache, the cache folder that this filled, its config)."""
    folder = tmp_path_factory.mktemp("fashion")
    config = FashionMnist(data_dir=str(shared / "data" / "tfds"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAUSE_JAX_CACHE", str(folder))
        data_module._tfds.cache_clear()
        dataset = config.load()
    data_module._tfds.cache_clear()
    return dataset, folder, config


def test_digits_are_scikit_learns():
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


def test_features_are_used_as_they_are():
    dataset = LinearRegression().load()
    assert dataset.to_input(dataset.x_train) is dataset.x_train


def test_linear_regression_is_learnable_up_to_its_noise():
    config = LinearRegression(num_features=6, num_samples=500, noise=0.1)
    dataset = config.load()
    chex.assert_shape([dataset.x_train, dataset.x_test], [(500, 6), (100, 6)])
    assert dataset.task == "regression"
    assert dataset.num_classes == 1
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


@pytest.mark.parametrize("config", [Mnist, Cifar10])
def test_mnist_and_cifar10_load(shared, forget, config):
    dataset = config(data_dir=str(shared / "data" / "tfds")).load()
    assert_images(dataset, config)
    assert_contents(dataset, config)


def test_fashion_mnist_loads(fashion):
    assert_images(fashion[0], FashionMnist)


def test_fashion_mnist_holds_clothes(fashion):
    # The official files of both sets have the same names, and are easily prepared the wrong way.
    assert_contents(fashion[0], FashionMnist)
    pixels = np.asarray(fashion[0].x_train) / 255
    assert pixels.mean() == pytest.approx(0.2860, abs=1e-4)
    assert pixels.std() == pytest.approx(0.3530, abs=1e-4)
    np.testing.assert_array_equal(np.bincount(fashion[0].y_train), 10 * [6000])
    np.testing.assert_array_equal(np.bincount(fashion[0].y_test), 10 * [1000])


def test_a_data_set_is_decoded_once_and_then_read_from_the_cache(fashion, forget, monkeypatch):
    first, folder, config = fashion
    assert [path.name for path in folder.iterdir()] == ["fashion_mnist.npz"]
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(folder))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # an import now fails
    second = config.load()
    np.testing.assert_array_equal(first.x_train, second.x_train)
    np.testing.assert_array_equal(first.y_train, second.y_train)
    np.testing.assert_array_equal(first.x_test, second.x_test)
    np.testing.assert_array_equal(first.y_test, second.y_test)


def write_tiny_cache(folder: pathlib.Path) -> None:
    folder.mkdir()
    np.savez(
        folder / "mnist.npz",
        x_train=np.zeros((3, 28, 28, 1), np.uint8),
        y_train=np.zeros(3, np.int32),
        x_test=np.zeros((2, 28, 28, 1), np.uint8),
        y_test=np.zeros(2, np.int32),
    )


def test_a_second_load_in_the_same_process_reads_nothing(empty_cache):
    write_tiny_cache(empty_cache)
    first = Mnist().load()
    assert first.x_train.shape[0] == 3
    (empty_cache / "mnist.npz").unlink()
    np.testing.assert_array_equal(Mnist().load().x_train, first.x_train)


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PAUSE_JAX_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("PAUSE_JAX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "pause_jax"


@pytest.mark.parametrize("config", [Mnist, FashionMnist, Cifar10])
def test_a_missing_folder_is_one_clear_error(empty_cache, tmp_path, config):
    folder = str(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="does not exist") as error:
        config(data_dir=folder).load()
    message = str(error.value)
    assert f"learning.data.data_dir = {folder!r}" in message
    assert config.name in message
    assert "digits" in message
    assert "\n" not in message
    assert error.value.__cause__ is None


@pytest.mark.parametrize("folder", ["empty", "empty/mnist", "empty/mnist/3.0.1"])
def test_a_folder_without_the_data_set_is_one_clear_error(empty_cache, tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(ConfigError, match="data_dir") as error:
        Mnist(data_dir=str(tmp_path / "empty")).load()
    message = str(error.value)
    assert message.startswith("learning.data")
    assert "mnist" in message
    assert repr(str(tmp_path / "empty")) in message
    assert "\n" not in message
    assert not empty_cache.exists(), "a failed load must leave no cache behind"


def test_a_folder_without_the_data_set_is_an_error_even_if_the_cache_could_serve(
    empty_cache, tmp_path
):
    write_tiny_cache(empty_cache)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="data_dir"):
        Mnist(data_dir=str(tmp_path / "empty")).load()


def test_missing_tensorflow_datasets_is_one_clear_error(empty_cache, monkeypatch, tmp_path):
    (tmp_path / "mnist").mkdir()
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ConfigError, match="tensorflow-datasets is missing") as error:
        Mnist(data_dir=str(tmp_path)).load()
    assert "pip install" in str(error.value)
    assert "digits" in str(error.value)


def test_digits_are_kept_too_and_a_folder_that_cannot_be_written_is_only_a_warning(
    empty_cache, monkeypatch, tmp_path
):
    first = Digits().load()
    assert (empty_cache / "digits.npz").is_file()
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
