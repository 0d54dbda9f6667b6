"""Configs for built-in data sets and data sets in files. Data is loaded before a run is traced."""

from __future__ import annotations

import functools
import os
import pathlib
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any, ClassVar

import numpy as np

from pause_jax.base.client_ids import natural_order
from pause_jax.base.compilation import cache_folder
from pause_jax.base.memory import check_memory
from pause_jax.base.source_file import check_regular, written
from pause_jax.base.struct import Config, ConfigError, prefixed, static
from pause_jax.learning.dataset import Dataset, checked

# Arrays, keyed by name. For a data set, the names are arguments of ``Dataset.of``, such as ``x``.
Arrays = dict[str, Any]
_TEST = "test.npz"


class DataConfig(Config):
    """Base class for data set configs.

    Attributes:
      num_train: number of training samples to use, drawn at random (default: all).
    """

    num_train: int | None = static(default=None, at_least=1, optional=True, kind=int)

    def load(self) -> Dataset:
        """Read the data set, or raise ConfigError if it cannot be read."""
        raise NotImplementedError


class Given(DataConfig):
    """Placeholder for arrays passed to ``sweep`` in Python or for arbitrary data (``of_any_data``).

    Attributes:
      digest: SHA-256 of the arrays (``Dataset.digest``).
    """

    name: ClassVar[str] = "given"
    summary: ClassVar[str] = "arrays passed in Python"

    digest: str = static(default="")

    def load(self) -> Dataset:
        raise ConfigError(
            f"learning.data = given, digest {self.digest[:12]!r}: the arrays were passed in "
            "Python and are not in a file. Pass them again with simulate(config, key, data=...), "
            "or save them and use learning.data = files."
        )


class Digits(DataConfig):
    """scikit-learn's 1,797 images of handwritten digits. The last 360 images are the test set."""

    name: ClassVar[str] = "digits"
    summary: ClassVar[str] = "1,797 digit images of 8 x 8 pixels, from scikit-learn (no download)"

    def load(self) -> Dataset:
        return _digits()


@functools.cache
def _digits() -> Dataset:
    arrays = decoded("digits", metadata.version("scikit-learn"), _read_digits)
    return Dataset.of(**arrays, pixel_max=16, num_classes=10)


def _read_digits() -> Arrays:
    # Importing scikit-learn takes a second and is not needed if the data is cached.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8)[..., None], bunch.target.astype(np.int32)
    return {"x": x[:-360], "y": y[:-360], "x_test": x[-360:], "y_test": y[-360:]}


class LinearRegression(DataConfig):
    """Synthetic linear regression (BSFL), y = <w, x> + noise with standard normal w and x.

    Attributes:
      num_features: dimension of x.
      num_samples: number of training samples. The test set has ``num_samples // 5`` samples.
      noise: standard deviation of the Gaussian noise in y.
      data_seed: random seed for drawing w, x and the noise.
    """

    name: ClassVar[str] = "linear_regression"
    summary: ClassVar[str] = "synthetic linear regression (BSFL)"

    num_features: int = static(default=10, at_least=1)
    num_samples: int = static(default=2000, at_least=5)
    noise: float = static(default=0.1, at_least=0)
    data_seed: int = static(default=0, at_least=0)

    def load(self) -> Dataset:
        check_memory(
            2 * 8 * self.num_samples * (self.num_features + 1),  # drawn as float64, then copied
            f"learning.data.num_samples = {self.num_samples}, num_features = {self.num_features}: "
            "the data set",
            "Lower num_samples or num_features.",
        )
        rng = np.random.default_rng(self.data_seed)
        n = self.num_samples
        w = rng.standard_normal(self.num_features)
        x = rng.standard_normal((n + n // 5, self.num_features))
        y = x @ w + self.noise * rng.standard_normal(len(x))
        return Dataset.of(x[:n], y[:n], x[n:], y[n:])


class Characters(DataConfig):
    """Next-character prediction on Python's documentation, with one client per topic.

    The samples are the ``pydoc`` topics of the running Python version, cut into windows of
    ``length`` characters. Every tenth window is a test sample. All characters other than printable
    ASCII and newline map to the same token.

    Attributes:
      length: L, number of characters per sample.
    """

    name: ClassVar[str] = "characters"
    summary: ClassVar[str] = "text from Python's documentation, one client per topic (no download)"

    length: int = static(default=48, at_least=2)

    ALPHABET: ClassVar[str] = "".join(map(chr, range(32, 127))) + "\n\ufffd"

    def load(self) -> Dataset:
        return _characters(self.length)


@functools.cache
def _characters(length: int) -> Dataset:
    from pydoc_data.topics import topics

    known = {letter: place for place, letter in enumerate(Characters.ALPHABET)}
    other = len(known) - 1
    windows = []
    clients: list[int] = []
    for number, topic in enumerate(sorted(topics)):
        codes = np.asarray([known.get(letter, other) for letter in topics[topic]], np.int32)
        count = (len(codes) - 1) // length
        for place in range(count):
            windows.append(codes[place * length : (place + 1) * length + 1])
        clients += [number] * count
    if not windows:
        raise ConfigError(
            f"learning.data.length = {length}: must be less than the length of the longest topic. "
            "Lower learning.data.length."
        )
    text = np.stack(windows)
    is_test = np.arange(len(text)) % 10 == 9
    train, test = text[~is_test], text[is_test]
    arrays = (train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:])
    data = Dataset.of(*arrays, clients=np.asarray(clients)[~is_test], num_classes=len(known))
    # Drop the ids, because fleet files do not name clients after topics.
    return checked(data.replace(client_ids=None))


class Files(DataConfig):
    """Custom arrays in ``.npz`` files, in the format of :meth:`Dataset.of`.

    A single file contains the ``x`` and ``y`` arrays and optionally ``x_test``, ``y_test`` and
    ``clients``. A folder contains one file per client with ``x`` and ``y``, and optionally the test
    set in ``test.npz``. In a folder, client ids are the file names without ``.npz``.

    Attributes:
      path: file or folder path, absolute or relative to the working directory.
      pixel_max: largest possible pixel value (default: 255 for uint8 inputs, otherwise 0).
      num_classes: number of labels or tokens; by default the largest label or token plus 1.
    """

    name: ClassVar[str] = "files"
    summary: ClassVar[str] = "custom arrays: an .npz file, or a folder with one file per client"

    path: str = static(default="")
    pixel_max: int | None = static(default=None, at_least=1, optional=True, kind=int)
    num_classes: int | None = static(default=None, at_least=2, optional=True, kind=int)

    def load(self) -> Dataset:
        where = pathlib.Path(self.path).expanduser()
        if not self.path or not os.path.exists(where):
            raise ConfigError(
                f"learning.data.path = {self.path!r}: must be an existing .npz file, or a folder "
                "of .npz files."
            )
        with prefixed(f"learning.data.path = {self.path!r}"):
            arrays = _folder(where) if where.is_dir() else _arrays(where)
            return Dataset.of(**arrays, pixel_max=self.pixel_max, num_classes=self.num_classes)


def _folder(folder: pathlib.Path) -> Arrays:
    clients = [path for path in folder.glob("*.npz") if path.name != _TEST]
    clients.sort(key=lambda path: natural_order(path.stem))
    if not clients:
        raise ConfigError("must have one .npz file per client, but has none.")
    parts = [_arrays(path, only=("x", "y")) for path in clients]
    arrays: Arrays = {}
    for name in "xy":
        forms = [f"{part[name].shape[1:]} and dtype kind {part[name].dtype.kind}" for part in parts]
        other = next((k for k, form in enumerate(forms) if form != forms[0]), 0)
        if other:
            raise ConfigError(
                f"samples of {name} have shape {forms[0]} in {clients[0].name}, but "
                f"{forms[other]} in {clients[other].name}. All files must have samples of the "
                "same shape and dtype kind."
            )
        arrays[name] = np.concatenate([part[name] for part in parts])
    ids = np.asarray([path.stem for path in clients])
    arrays["clients"] = np.repeat(ids, [len(part["x"]) for part in parts])
    if (folder / _TEST).is_file():
        test = _arrays(folder / _TEST, only=("x", "y"))
        arrays |= {f"{name}_test": test[name] for name in "xy"}
    return arrays


def read_npz(path: pathlib.Path) -> Arrays:
    """Read the arrays in an ``.npz`` file, or raise ConfigError if the file is invalid."""
    check_regular("file", path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as zipped:
            unpacked = sum(entry.file_size for entry in zipped.zip.infolist())
            check_memory(unpacked, f"{path}: the unpacked data", "Use fewer samples.")
            arrays = dict(zipped)
            if other := [name for name, array in arrays.items() if isinstance(array, bytes)]:
                raise ValueError(f"{other[0]} is not a .npy array")
    except ConfigError:
        raise
    except Exception as error:  # NumPy raises many exception types for invalid files
        raise ConfigError(f"{path}: must be an .npz file of numbers ({error}).") from None
    return arrays


def _arrays(path: pathlib.Path, only: tuple[str, ...] = ()) -> Arrays:
    """Read and validate the arrays in a file. If nonempty, ``only`` lists the allowed names."""
    arrays = read_npz(path)
    known = only or ("x", "y", "x_test", "y_test", "clients")
    if not {"x", "y"} <= set(arrays) <= set(known):
        raise ConfigError(
            f"{path}: must have the arrays x and y, and may have "
            f"{', '.join(known[2:]) or 'no others'}, but has "
            f"{', '.join(sorted(arrays)) or 'none'}."
        )
    x, y = arrays["x"], arrays["y"]
    if x.ndim == 0 or x.shape[:1] != y.shape[:1] or not len(x):
        raise ConfigError(
            f"{path}: x has shape {x.shape} and y has shape {y.shape}: must have the same nonzero "
            "number of samples (first axis)."
        )
    return arrays


def decoded(name: str, source: str, read: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of a data set from the cache folder, or call ``read`` and cache the result.

    ``source`` is the data set's version or fingerprint. Warns if the cache file is damaged or
    cannot be written.
    """
    path = cache_folder() / f"{name}-{source}.npz"
    if path.is_file():
        try:
            with path.open("rb") as file, np.load(file) as arrays:
                return dict(arrays)
        except Exception as error:  # NumPy raises many exception types for invalid files
            warnings.warn(
                f"{path} is damaged ({type(error).__name__}). Decoding {name} again.",
                stacklevel=2,
            )
    arrays = read()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written(path) as out:
            np.savez(out, **arrays)
    except OSError as error:
        warnings.warn(
            f"{path} cannot be written ({error}), so {name} will be decoded in each process. Set "
            "PAUSE_JAX_CACHE to a writable folder.",
            stacklevel=2,
        )
    return arrays


def is_decoded(name: str) -> bool:
    """Return whether the cache contains any version of the ``name`` data set."""
    return any(cache_folder().glob(f"{name}-*.npz"))
