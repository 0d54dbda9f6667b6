"""Data sets as arrays. Loading is the one impure step; it happens once, before a run."""

from __future__ import annotations

import functools
import os
import pathlib
import warnings
from collections.abc import Callable
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.cache import cache_folder
from pause_jax.struct import Config, ConfigError, PyTree, static

Task = Literal["classification", "regression"]


class Dataset(PyTree):
    """A data set on the device.

    Attributes:
      x_train, x_test: [N, ...]; uint8 pixels, or float features that are used as they are.
      y_train, y_test: int32 [N] labels, or float32 [N] targets.
      pixel_max: largest pixel value; pixels become (x / pixel_max - 0.5) / 0.5. 0 for features.
      num_classes: outputs of a model; 1 for regression.
      task: what is learned.
    """

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    pixel_max: int = static(default=255)
    num_classes: int = static(default=10)
    task: Task = static(default="classification", choices=("classification", "regression"))

    def to_input(self, x: Array) -> Array:
        """Model input from stored values: pixels to [-1, 1], SPEC section 5."""
        if self.pixel_max == 0:
            return x
        return x.astype(jnp.float32) * (2.0 / self.pixel_max) - 1.0


class DataConfig(Config):
    """A data set's config.

    Attributes:
      num_train: use this many training samples, drawn at random by the key; all by default.
    """

    num_train: int | None = static(default=None, at_least=1, optional=True, kind=int)
    num_classes: ClassVar[int] = 10

    def load(self) -> Dataset:
        """Read the data set. Raises ConfigError with the fix if it cannot be read."""
        raise NotImplementedError


class Digits(DataConfig):
    """scikit-learn's 1,797 handwritten digits, 8 x 8; the last 360 are the test set."""

    name: ClassVar[str] = "digits"
    summary: ClassVar[str] = "1,797 digits of 8 x 8 pixels from scikit-learn, no download"

    def load(self) -> Dataset:
        return _digits()


class LinearRegression(DataConfig):
    """Synthetic linear regression (BSFL): y = <w, x> + noise, x standard normal.

    Attributes:
      num_features: dimension of x.
      num_samples: training samples; as many again, divided by five, are for testing.
      noise: standard deviation of the noise in y.
      data_seed: fixes w and the samples.
    """

    name: ClassVar[str] = "linear_regression"
    summary: ClassVar[str] = "synthetic linear regression (BSFL), no download"
    num_classes: ClassVar[int] = 1

    num_features: int = static(default=10, at_least=1)
    num_samples: int = static(default=2000, at_least=5)
    noise: float = static(default=0.1, at_least=0)
    data_seed: int = static(default=0)

    def load(self) -> Dataset:
        rng = np.random.default_rng(self.data_seed)
        num_test = self.num_samples // 5
        w = rng.standard_normal(self.num_features)
        x = rng.standard_normal((self.num_samples + num_test, self.num_features))
        y = x @ w + self.noise * rng.standard_normal(len(x))
        return _on_device(
            _split(x.astype(np.float32), y.astype(np.float32), self.num_samples),
            pixel_max=0,
            num_classes=1,
            task="regression",
        )


class Tfds(DataConfig):
    """A data set through tensorflow-datasets.

    Attributes:
      data_dir: folder that holds the prepared data set; tensorflow-datasets' own by default.
      download: download and prepare it first if it is not there (needs tensorflow, once).
    """

    data_dir: str | None = static(default=None, optional=True, kind=str)
    download: bool = static(default=False)

    def load(self) -> Dataset:
        return _tfds(self.name, self.data_dir, self.download)


class Mnist(Tfds):
    """MNIST, 60,000 + 10,000 images of 28 x 28."""

    name: ClassVar[str] = "mnist"
    summary: ClassVar[str] = "60,000 digits of 28 x 28 pixels, tensorflow-datasets"


class FashionMnist(Tfds):
    """Fashion-MNIST, 60,000 + 10,000 images of 28 x 28."""

    name: ClassVar[str] = "fashion_mnist"
    summary: ClassVar[str] = "60,000 clothes of 28 x 28 pixels, tensorflow-datasets"


class Cifar10(Tfds):
    """CIFAR-10, 50,000 + 10,000 colour images of 32 x 32."""

    name: ClassVar[str] = "cifar10"
    summary: ClassVar[str] = "50,000 colour images of 32 x 32 pixels, tensorflow-datasets"


DATASETS: tuple[type[DataConfig], ...] = (Digits, Mnist, FashionMnist, Cifar10, LinearRegression)


@functools.cache
def _digits() -> Dataset:
    arrays = _cached("digits", _read_digits)
    return _on_device(arrays, pixel_max=16, num_classes=10, task="classification")


@functools.cache
def _tfds(name: str, data_dir: str | None, download: bool) -> Dataset:
    # A wrong data_dir is an error even if the cache could serve: a typo should not pass unnoticed.
    if data_dir is not None and not download:
        folder = pathlib.Path(data_dir).expanduser()
        if not (folder / name).is_dir():
            what = "has no such data set in it" if folder.is_dir() else "does not exist"
            raise ConfigError(
                f"learning.data.data_dir = {data_dir!r}: {what}; it must be a folder that holds "
                f"{name} as tensorflow-datasets prepares it. Give its path, or use the data set "
                "'digits', which needs no download."
            )
    arrays = _cached(name, lambda: _read_tfds(name, data_dir, download))
    return _on_device(arrays, pixel_max=255, num_classes=10, task="classification")


def _cached(name: str, read: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Decode once: the images of a data set as uint8 arrays in one file of the cache folder."""
    path = cache_folder() / f"{name}.npz"
    if path.is_file():
        with np.load(path) as file:
            return file["x_train"], file["y_train"], file["x_test"], file["y_test"]
    arrays = read()
    partial = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out:
            x_train, y_train, x_test, y_test = arrays
            np.savez(out, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        partial.replace(path)
    except OSError as error:
        warnings.warn(
            f"{path} cannot be written ({error}), so {name} is decoded at every start. Name "
            "another folder in PAUSE_JAX_CACHE.",
            stacklevel=2,
        )
    return arrays


def _read_digits() -> tuple[np.ndarray, ...]:
    # Its import takes a second, which only the first start should pay.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = bunch.images.astype(np.uint8)[..., None]
    return _split(x, bunch.target.astype(np.int32), len(x) - 360)


def _read_tfds(name: str, data_dir: str | None, download: bool) -> tuple[np.ndarray, ...]:
    fix = (
        "Install the extra (pip install 'pause_jax[data]') and either point "
        f"learning.data.data_dir at a folder that holds {name} in array_record format, or set "
        "learning.data.download (needs tensorflow-cpu installed, once). The data set 'digits' "
        "needs no download."
    )
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ConfigError(
            f"learning.data = {name}: tensorflow-datasets is missing. {fix}"
        ) from error
    folder = None if data_dir is None else str(pathlib.Path(data_dir).expanduser())
    arrays: list[np.ndarray] = []
    try:
        source = tfds.data_source(
            name,
            data_dir=folder,
            download=download,
            builder_kwargs={"file_format": "array_record"},
        )
        for split in ("train", "test"):
            records = source[split].__getitems__(list(range(len(source[split]))))
            arrays.append(np.stack([record["image"] for record in records]))
            arrays.append(np.asarray([record["label"] for record in records], np.int32))
    except Exception as error:  # tfds raises many types here, all of which mean "not readable"
        raise ConfigError(
            f"learning.data = {name}: cannot be read from data_dir = {data_dir!r} "
            f"({type(error).__name__}: {error}). {fix}"
        ) from error
    return tuple(arrays)


def _split(x: np.ndarray, y: np.ndarray, num_train: int) -> tuple[np.ndarray, ...]:
    return x[:num_train], y[:num_train], x[num_train:], y[num_train:]


def _on_device(
    arrays: tuple[np.ndarray, ...], *, pixel_max: int, num_classes: int, task: Task
) -> Dataset:
    # Loaded data sets are kept, so they must be arrays even if the first load is inside a trace.
    with jax.ensure_compile_time_eval():
        x_train, y_train, x_test, y_test = map(jnp.asarray, arrays)
    return Dataset(
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        pixel_max=pixel_max,
        num_classes=num_classes,
        task=task,
    )
