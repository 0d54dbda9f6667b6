"""Data sets from tensorflow-datasets, read without TensorFlow once they are prepared."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import re
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError, Sizes, static
from pause_jax.learning.data import Arrays, DataConfig, decoded
from pause_jax.learning.dataset import Dataset

# Rejects "NAMESPACE:" prefixes, because tensorflow-datasets would run third-party code for them.
_NAME = re.compile(r"\w+(/\w[\w.-]*)?(:[\d.*]+)?", re.ASCII)


class Source(NamedTuple):
    """Name, features and splits of a data set in tensorflow-datasets (see :class:`Tfds`)."""

    dataset: str
    inputs: str = "image"
    labels: str = "label"
    train: str = "train"
    test: str | None = "test"


class Prepared(DataConfig):
    """Base class for configs of data sets from tensorflow-datasets.

    Attributes:
      data_dir: folder of prepared data sets (default: the folder that tensorflow-datasets uses).
      download: whether to download and prepare a missing data set (requires TensorFlow).
    """

    data_dir: str | None = static(default=None, optional=True, kind=str)
    download: bool = static(default=False)

    def check(self, path: str, sizes: Sizes) -> None:
        if not _NAME.fullmatch(self.source.dataset):
            raise ConfigError(
                f"{path}.dataset = {shown(self.source.dataset)}: must have the form "
                "NAME[/CONFIG][:VERSION]. Other names can cause third-party code to run."
            )

    @property
    def source(self) -> Source:
        """Name, features and splits of the data set to read."""
        return Source(self.name)

    def load(self) -> Dataset:
        source = self.source
        folder = _folder(self.data_dir, source.dataset)
        if not os.path.isdir(folder):
            if not self.download:
                rest = (
                    "does not contain the data set" if folder.parent.is_dir() else "does not exist"
                )
                raise _unreadable(source, self.data_dir, f"{str(folder.parent)!r} {rest}")
            _open(source, self.data_dir, download=True)
        return _load(source, self.data_dir, _fingerprint(folder))


class Mnist(Prepared):
    """MNIST, with 60,000 training and 10,000 test images of 28 x 28 pixels."""

    name: ClassVar[str] = "mnist"
    summary: ClassVar[str] = "60,000 digit images of 28 x 28 pixels, from tensorflow-datasets"


class FashionMnist(Prepared):
    """Fashion-MNIST, with 60,000 training and 10,000 test images of 28 x 28 pixels."""

    name: ClassVar[str] = "fashion_mnist"
    summary: ClassVar[str] = "60,000 clothing images of 28 x 28 pixels, from tensorflow-datasets"


class Cifar10(Prepared):
    """CIFAR-10, with 50,000 training and 10,000 test colour images of 32 x 32 pixels."""

    name: ClassVar[str] = "cifar10"
    summary: ClassVar[str] = "50,000 colour images of 32 x 32 pixels, from tensorflow-datasets"


class Tfds(Prepared):
    """Any data set from tensorflow-datasets whose images or feature vectors have the same shape.

    Attributes:
      dataset: name of the data set, such as ``emnist`` or ``kmnist``.
      inputs: name of the input feature.
      labels: name of the target feature, which contains integer labels or float regression targets.
      train: name of the training split.
      test: name of the test split; None to use a random fifth of the training split for testing.
    """

    name: ClassVar[str] = "tfds"
    summary: ClassVar[str] = "any image or feature-vector data set in tensorflow-datasets, by name"

    dataset: str = static(default="mnist")
    inputs: str = static(default="image")
    labels: str = static(default="label")
    train: str = static(default="train")
    test: str | None = static(default="test", optional=True)

    @property
    def source(self) -> Source:
        return Source(self.dataset, self.inputs, self.labels, self.train, self.test)


def _folder(data_dir: str | None, dataset: str) -> pathlib.Path:
    # Compute the path here, because importing tensorflow-datasets just for this takes seconds.
    base = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return pathlib.Path(base).expanduser() / dataset.partition(":")[0]


def _unreadable(source: Source, data_dir: str | None, why: str) -> ConfigError:
    return ConfigError(
        f"learning.data.data_dir = {data_dir!r}: cannot read {source.dataset} "
        f"({' '.join(why.split())}). Install the extra (pip install 'pause_jax[data]'). Then set "
        f"learning.data.data_dir to a folder with {source.dataset} in array_record format, or set "
        "learning.data.download = true (preparation requires tensorflow-cpu). The "
        "'digits' data set needs no download."
    )


def _fingerprint(folder: pathlib.Path) -> str:
    """Return a hash of the names, sizes and modification times of all files in a folder."""
    content = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            size, time = path.stat().st_size, path.stat().st_mtime_ns
            content.update(f"{path.relative_to(folder)} {size} {time}\n".encode())
    return content.hexdigest()[:16]


@functools.cache
def _load(source: Source, data_dir: str | None, fingerprint: str) -> Dataset:
    words = (source.dataset, *(() if source[1:] == Source("")[1:] else source[1:]))
    name = "-".join(str(word) for word in words).replace("/", "_").replace(":", "_")
    arrays = dict(decoded(name, fingerprint, lambda: _read(source, data_dir)))
    if "num_classes" in arrays:
        arrays["num_classes"] = int(arrays["num_classes"])
    return Dataset.of(**arrays)


def _open(source: Source, data_dir: str | None, *, download: bool) -> Any:
    folder = None if data_dir is None else str(pathlib.Path(data_dir).expanduser())
    prepared = {"file_format": "array_record"}
    try:
        import tensorflow_datasets as tfds

        splits = tfds.data_source(
            source.dataset, data_dir=folder, download=download, builder_kwargs=prepared
        )
    except Exception as error:  # tfds raises many exception types if data is not readable
        raise _unreadable(source, data_dir, f"{type(error).__name__}: {error}") from error
    if not splits:
        raise _unreadable(source, data_dir, "the folder does not contain the prepared data set")
    return splits


def _read(source: Source, data_dir: str | None) -> Arrays:
    splits = _open(source, data_dir, download=False)
    arrays: Arrays = {}
    for split, suffix in ((source.train, ""), (source.test, "_test")):
        if split is None:
            continue
        if split not in splits:
            raise ConfigError(
                f"learning.data = {source.dataset}: has no split {split!r} (splits: "
                f"{', '.join(map(repr, splits))}). Set learning.data.train and learning.data.test."
            )
        try:
            records = splits[split].__getitems__(list(range(len(splits[split]))))
        except Exception as error:
            raise _unreadable(source, data_dir, f"{type(error).__name__}: {error}") from error
        for part, feature in (("x", source.inputs), ("y", source.labels)):
            if feature not in records[0]:
                raise ConfigError(
                    f"learning.data = {source.dataset}: has no feature {feature!r} (features: "
                    f"{', '.join(map(repr, records[0]))}). Set learning.data.inputs and "
                    "learning.data.labels."
                )
            values = [record[feature] for record in records]
            arrays[part + suffix] = _stacked(source, feature, values)
    labels = splits[source.train].dataset_info.features[source.labels]
    if hasattr(labels, "num_classes"):
        arrays["num_classes"] = np.asarray(labels.num_classes)
    return arrays


def _stacked(source: Source, feature: str, values: list[Any]) -> Any:
    shapes = {np.shape(value) for value in values}
    array = np.asarray(values) if len(shapes) == 1 else None
    if array is None or not np.issubdtype(array.dtype, np.number):
        kinds = f"shapes such as {sorted(shapes)[:3]}" if array is None else f"dtype {array.dtype}"
        raise ConfigError(
            f"learning.data = {source.dataset}: {feature!r} has {kinds}: must be numbers with the "
            "same shape in all samples."
        )
    return array
