"""A data set as arrays on the device, and the checks of custom arrays."""

from __future__ import annotations

import functools
import hashlib
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.base.client_ids import numbered
from pause_jax.base.struct import ConfigError, PyTree, static
from pause_jax.learning.arrays import (
    PARTS,
    as_array,
    as_count,
    as_numbers,
    check_inputs,
    check_shapes,
    check_targets,
    checked_clients,
    form,
    num_classes_of,
)


class Dataset(PyTree):
    """A data set on the device; of custom arrays by :meth:`of`.

    Attributes:
      x_train, x_test: [N, ...]; uint8 pixels, float32 features that are used as they are, or int32
        tokens [N, L].
      y_train, y_test: int32 [N] labels, float32 [N] or [N, k] targets, or int32 [N, L] tokens.
      clients: int32 [N], the client that each training sample came from, 0, 1, ... without gaps;
        None if not known. What the partition ``natural`` reads.
      client_ids: what the data's owner calls these clients, in the order of their numbers; None if
        they have no names (static).
      pixel_max: largest pixel value; pixels become (x / pixel_max - 0.5) / 0.5. 0 for features.
      num_classes: number of labels, or of tokens in the vocabulary; of no meaning for regression.
    """

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    clients: Array | None = None
    client_ids: tuple[str, ...] | None = static(default=None, optional=True, kind=str)
    pixel_max: int = static(default=0, at_least=0)
    num_classes: int = static(default=1, at_least=1)

    # Nine arguments, as one call takes all that a data set has, by keywords.
    @classmethod
    def of(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        *,
        clients: ArrayLike | None = None,
        pixel_max: int | None = None,
        num_classes: int | None = None,
        test_share: float = 0.2,
        seed: int = 0,
    ) -> Dataset:
        """A data set of arrays, checked.

        Args:
          x: inputs [N, ...]: uint8 pixels, floats or truth values that are used as they are, or
            whole numbers [N, L] as tokens.
          y: whole numbers or truth values [N] are labels 0, 1, ...; floats [N] or [N, k] are
            targets of a regression; whole numbers [N, L] are tokens to predict.
          x_test: of the test set; without one, a share of the samples is drawn for it.
          y_test: with ``x_test`` or not at all.
          clients: [N], the id of each sample's client: a whole number >= 0 or a name. In a
            simulation client k is the k-th of them in natural order ("site2" before "site10").
            Results and files of a fleet go by these ids.
          pixel_max: largest value of a pixel; 255 by default for uint8.
          num_classes: number of labels or tokens; one more than the largest by default.
          test_share: share of the samples drawn for a test set; every client keeps at least one.
          seed: of that draw.

        Raises:
          ConfigError: if the arrays do not fit each other, or cannot be learnt from.

        Examples:
          >>> import numpy as np
          >>> from pause_jax.learning import Dataset
          >>> data = Dataset.of(np.zeros((50, 4)), np.arange(50) % 3)
          >>> data.x_train.shape, data.x_test.shape, data.num_classes
          ((40, 4), (10, 4), 3)
        """
        if (x_test is None) != (y_test is None):
            raise ConfigError("x_test and y_test: give both, or neither to have a share drawn.")
        arrays, ids = _samples(x, y, clients)
        if x_test is None:
            arrays = _split(arrays, test_share, seed)
        else:
            arrays |= {
                "x_test": as_numbers("x_test", x_test),
                "y_test": as_numbers("y_test", y_test),
            }
        if pixel_max is None:
            pixel_max = 255 if arrays["x_train"].dtype == np.uint8 else 0
        if num_classes is None:
            num_classes = num_classes_of(arrays)
        return checked(
            cls(**arrays, client_ids=ids, pixel_max=pixel_max, num_classes=num_classes)  # type: ignore[arg-type]
        )

    def __repr__(self) -> str:
        """Shapes and kinds; the arrays themselves would fill the screen."""
        named = {name: getattr(self, name) for name in ("x_train", "y_train", "x_test", "y_test")}
        parts = [f"{k}={getattr(x, 'dtype', '?')}{list(np.shape(x))}" for k, x in named.items()]
        if self.client_ids is not None:
            parts.append(f"{len(self.client_ids)} clients")
        sizes = f"pixel_max={self.pixel_max}, num_classes={self.num_classes}"
        return f"Dataset({', '.join(parts)}, {sizes})"

    def to_input(self, x: Array) -> Array:
        """Model input from stored values: pixels to [-1, 1], SPEC section 5."""
        if self.pixel_max == 0:
            return x
        return x.astype(jnp.float32) * (2.0 / self.pixel_max) - 1.0

    @property
    def sample(self) -> jax.ShapeDtypeStruct:
        """Shape and kind of one model input, without the axis of samples."""
        return jax.eval_shape(self.to_input, jax.ShapeDtypeStruct(*form(self.x_train)))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of all arrays: by which a result says what it was run with."""
        content = hashlib.sha256()
        for leaf in jax.tree.leaves(self):
            array = np.ascontiguousarray(leaf)
            content.update(f"{array.dtype} {array.shape}".encode())
            content.update(array.data)
        return content.hexdigest()


# Data sets that are checked; a second check costs nothing.
_CHECKED: weakref.WeakValueDictionary[int, Dataset] = weakref.WeakValueDictionary()


def checked(data: Dataset) -> Dataset:
    """The data set with arrays of the kinds that the library computes with, on the device.

    Raises:
      ConfigError: for arrays that do not fit each other, entries that are not finite, labels out of
        range, pixels that are none; and for something else than a data set.
    """
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"data = {type(data).__name__}: must be a pause_jax.learning.Dataset, which "
            "Dataset.of(x, y) makes, or None for the data set that the config names."
        )
    leaves = jax.tree.leaves(data)
    # The values of traced arrays are unknown here; they were checked before the trace.
    if _CHECKED.get(id(data)) is data or any(isinstance(x, jax.core.Tracer) for x in leaves):
        return data
    pixel_max = as_count("pixel_max", data.pixel_max, 0)
    num_classes = as_count("num_classes", data.num_classes, 1)
    arrays = {
        f"{of}_{part}": as_numbers(f"{of}_{part}", getattr(data, f"{of}_{part}"))
        for of in "xy"
        for part in PARTS
    }
    check_shapes(arrays)
    check_inputs(arrays, pixel_max)
    check_targets(arrays, num_classes)
    if data.clients is not None:
        arrays["clients"] = checked_clients(
            np.asarray(data.clients), data.client_ids, len(arrays["x_train"])
        )
    with jax.ensure_compile_time_eval():
        placed = {name: jax.device_put(array, may_alias=False) for name, array in arrays.items()}
        done = data.replace(**placed, pixel_max=pixel_max, num_classes=num_classes)
    _CHECKED[id(done)] = done
    return done


def _samples(
    x: ArrayLike, y: ArrayLike, clients: ArrayLike | None
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...] | None]:
    """Arrays ``x_train``, ``y_train`` and perhaps ``clients`` of one length; ids of the clients."""
    arrays = {"x_train": as_numbers("x", x), "y_train": as_numbers("y", y)}
    if clients is not None:
        arrays["clients"] = as_array("clients", clients)
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != len(arrays["x_train"]):
            raise ConfigError(
                f"{name} has shape {array.shape}: must have a first axis of one entry for each "
                f"of the {len(np.atleast_1d(arrays['x_train']))} samples of x."
            )
    if clients is None:
        return arrays, None
    if arrays["clients"].ndim != 1:
        shape = arrays["clients"].shape
        raise ConfigError(f"clients has shape {shape}: must be [N], one a sample.")
    ids, arrays["clients"] = numbered("clients", arrays["clients"])
    return arrays, ids


def _split(arrays: dict[str, NDArray[Any]], share: float, seed: int) -> dict[str, NDArray[Any]]:
    """Training and test set of the samples of x and y, drawn at random."""
    number = len(arrays["x_train"])
    seed = as_count("seed", seed, 0)
    num_test = round(share * number) if 0 < share < 1 else 0
    order = np.random.default_rng(seed).permutation(number)
    # In the order in which they came, so that a natural one of time or client stays.
    test = np.sort(_spared(order[:num_test], arrays.get("clients")))
    if not 0 < len(test) < number:
        raise ConfigError(
            f"test_share = {share}: of {number} samples it leaves {len(test)} for the test set; "
            "both sets must have one, and every client one for training. Give x_test and y_test."
        )
    train = np.setdiff1d(np.arange(number), test)
    parts = {name: array[train] for name, array in arrays.items()}
    for of in "xy":
        parts[f"{of}_test"] = arrays[f"{of}_train"][test]
    return parts


def _spared(test: NDArray[Any], clients: NDArray[Any] | None) -> NDArray[Any]:
    """The samples drawn for the test set, without one of each client that would have none left."""
    if clients is None:
        return test
    drawn, first, times = np.unique(clients[test], return_index=True, return_counts=True)
    emptied = np.bincount(clients)[drawn] == times
    return np.delete(test, first[emptied])
