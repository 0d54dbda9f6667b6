"""Data sets by name. Loading is the one impure step; it happens once, before a run."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import ClassVar

import numpy as np

from pause_jax.base.memory import check_memory
from pause_jax.base.struct import Config, ConfigError, static
from pause_jax.learning.dataset import Dataset, checked
from pause_jax.learning.decoded import Arrays, decoded


class DataConfig(Config):
    """A data set's config.

    Attributes:
      num_train: use this many training samples, drawn at random by the key; all by default.
    """

    num_train: int | None = static(default=None, at_least=1, optional=True, kind=int)

    def load(self) -> Dataset:
        """Read the data set. Raises ConfigError with the fix if it cannot be read."""
        raise NotImplementedError


class Given(DataConfig):
    """Arrays that were handed to ``simulate`` or ``sweep``: what a result says of them.

    Attributes:
      digest: SHA-256 of the arrays, ``Dataset.digest``.
    """

    name: ClassVar[str] = "given"
    summary: ClassVar[str] = "arrays handed over in Python"

    digest: str = static(default="")

    def load(self) -> Dataset:
        raise ConfigError(
            f"learning.data = given, of digest {self.digest[:12]!r}: the arrays were handed over "
            "in Python and are in no file. Hand them over again, simulate(config, key, data=...), "
            "or keep them as files for learning.data = files."
        )


class Digits(DataConfig):
    """scikit-learn's 1,797 handwritten digits, 8 x 8; the last 360 are the test set."""

    name: ClassVar[str] = "digits"
    summary: ClassVar[str] = "1,797 digits of 8 x 8 pixels from scikit-learn, no download"

    def load(self) -> Dataset:
        return _digits()


@functools.cache
def _digits() -> Dataset:
    arrays = decoded("digits", metadata.version("scikit-learn"), _read_digits)
    return Dataset.of(**arrays, pixel_max=16, num_classes=10)


def _read_digits() -> Arrays:
    # Its import takes a second, which only the first start should pay.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = bunch.images.astype(np.uint8)[..., None], bunch.target.astype(np.int32)
    return {"x": x[:-360], "y": y[:-360], "x_test": x[-360:], "y_test": y[-360:]}


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

    num_features: int = static(default=10, at_least=1)
    num_samples: int = static(default=2000, at_least=5)
    noise: float = static(default=0.1, at_least=0)
    data_seed: int = static(default=0, at_least=0)

    def load(self) -> Dataset:
        check_memory(
            2 * 8 * self.num_samples * (self.num_features + 1),  # as drawn, and as they are kept
            f"learning.data.num_samples = {self.num_samples}, num_features = {self.num_features}: "
            "such a data set",
            "Take fewer.",
        )
        rng = np.random.default_rng(self.data_seed)
        num_train, num_test = self.num_samples, self.num_samples // 5
        w = rng.standard_normal(self.num_features)
        x = rng.standard_normal((num_train + num_test, self.num_features))
        y = x @ w + self.noise * rng.standard_normal(len(x))
        return Dataset.of(x[:num_train], y[:num_train], x[num_train:], y[num_train:])


class Characters(DataConfig):
    """Characters to predict, from the reference texts of Python itself; a client a topic.

    The topics of ``pydoc`` (so the text is that of the Python that runs), in windows of a fixed
    length; every tenth window is for testing. Rare characters count as one.

    Attributes:
      length: L, characters of a sample.
    """

    name: ClassVar[str] = "characters"
    summary: ClassVar[str] = "characters of Python's own reference, a client a topic, no download"

    length: int = static(default=48, at_least=2)

    # Printable ASCII and the end of a line; what else there is becomes the last.
    ALPHABET: ClassVar[str] = "".join(map(chr, range(32, 127))) + "\n\ufffd"

    def load(self) -> Dataset:
        return _characters(self.length)


@functools.cache
def _characters(length: int) -> Dataset:
    from pydoc_data.topics import topics

    known = {letter: place for place, letter in enumerate(Characters.ALPHABET)}
    other, windows, clients = len(known) - 1, [], []
    for number, topic in enumerate(sorted(topics)):
        codes = np.asarray([known.get(letter, other) for letter in topics[topic]], np.int32)
        count = (len(codes) - 1) // length
        for place in range(count):
            windows.append(codes[place * length : (place + 1) * length + 1])
        clients += [number] * count
    if not windows:
        raise ConfigError(f"learning.data.length = {length}: no topic is as long. Take fewer.")
    text, topic_of = np.stack(windows), np.asarray(clients)
    test = np.arange(len(text)) % 10 == 9
    train, test_text = text[~test], text[test]
    data = Dataset.of(
        train[:, :-1],
        train[:, 1:],
        test_text[:, :-1],
        test_text[:, 1:],
        clients=topic_of[~test],
        num_classes=len(known),
    )
    # Topics stand in for clients of any fleet: they have no ids that its files could know.
    return checked(data.replace(client_ids=None))
