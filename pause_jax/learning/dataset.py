"""A data set as arrays on the device, and the door at which arrays of one's own are checked."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.struct import ConfigError, PyTree, static

# Of a data set, the part that each array belongs to.
_PARTS = ("train", "test")
_LARGEST_INT = np.iinfo(np.int32).max


class Dataset(PyTree):
    """A data set on the device. Of arrays of one's own: :meth:`of`.

    Attributes:
      x_train, x_test: [N, ...]; uint8 pixels, float32 features that are used as they are, or int32
        tokens [N, L].
      y_train, y_test: int32 [N] labels, float32 [N] or [N, k] targets, or int32 [N, L] tokens.
      clients: int32 [N], the client that each training sample came from, 0, 1, ... without gaps;
        None if there is no such thing. What the partition ``natural`` reads.
      pixel_max: largest pixel value; pixels become (x / pixel_max - 0.5) / 0.5. 0 for features.
      num_classes: number of labels, or of tokens in the vocabulary; of no meaning for regression.
    """

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    clients: Array | None = None
    pixel_max: int = static(default=0, at_least=0)
    num_classes: int = static(default=1, at_least=1)

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
          x: inputs [N, ...]: uint8 pixels, floats that are used as they are, or whole numbers
            [N, L] as tokens.
          y: whole numbers [N] are labels 0, 1, ...; floats [N] or [N, k] are targets of a
            regression; whole numbers [N, L] are tokens to predict.
          x_test: of the test set; without one, a share of the samples is drawn for it.
          y_test: with ``x_test`` or not at all.
          clients: [N], of what client each sample of x is: numbers or names. In a simulation client
            k is the k-th of them in ascending order.
          pixel_max: largest value of a pixel; 255 by default for uint8.
          num_classes: labels or tokens that there are; one more than the largest by default.
          test_share: share of the samples that are drawn for the test set if none is given.
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
        arrays = {"x_train": _array("x", x), "y_train": _array("y", y)}
        if clients is not None:
            arrays["clients"] = _array("clients", clients)
        for name, array in arrays.items():
            if array.ndim == 0 or len(array) != len(arrays["x_train"]):
                raise ConfigError(
                    f"{name} has shape {array.shape}: must have a first axis of one entry for each "
                    f"of the {len(np.atleast_1d(arrays['x_train']))} samples of x."
                )
        if x_test is None:
            arrays = _split(arrays, test_share, seed)
        else:
            arrays |= {"x_test": _array("x_test", x_test), "y_test": _array("y_test", y_test)}
        known = arrays.pop("clients", None)
        if known is not None:
            if known.ndim != 1:
                raise ConfigError(f"clients has shape {known.shape}: must be [N], one a sample.")
            known = np.unique(known, return_inverse=True)[1].astype(np.int32)
        if pixel_max is None:
            pixel_max = 255 if arrays["x_train"].dtype == np.uint8 else 0
        if num_classes is None:
            num_classes = _num_classes(arrays)
        return checked(
            cls(**arrays, clients=known, pixel_max=pixel_max, num_classes=num_classes)  # type: ignore[arg-type]
        )

    def to_input(self, x: Array) -> Array:
        """Model input from stored values: pixels to [-1, 1], SPEC section 5."""
        if self.pixel_max == 0:
            return x
        return x.astype(jnp.float32) * (2.0 / self.pixel_max) - 1.0

    @property
    def sample(self) -> jax.ShapeDtypeStruct:
        """Shape and kind of one model input, without the axis of samples."""
        return jax.eval_shape(self.to_input, jax.ShapeDtypeStruct(*_form(self.x_train)))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of all arrays: by which a result says what it was run with."""
        content = hashlib.sha256()
        for leaf in jax.tree.leaves(self):
            array = np.ascontiguousarray(leaf)
            content.update(f"{array.dtype} {array.shape}".encode())
            content.update(array.data)
        return content.hexdigest()


def dataset_of(
    arrays: Mapping[str, ArrayLike], pixel_max: int | None = None, num_classes: int | None = None
) -> Dataset:
    """The data set of arrays by name, ``x`` and ``y`` and what goes with them in Dataset.of."""
    x_test, y_test, clients = map(arrays.get, ("x_test", "y_test", "clients"))
    return Dataset.of(
        *(arrays["x"], arrays["y"], x_test, y_test),
        clients=clients,
        pixel_max=pixel_max,
        num_classes=num_classes,
    )


def _form(x: Any) -> tuple[tuple[int, ...], Any]:
    return x.shape[1:], x.dtype


# Data sets that went through the door; a second passage costs nothing.
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
    # Of arrays that are traced no value is known; whoever traced them passed the door.
    if _CHECKED.get(id(data)) is data or any(isinstance(x, jax.core.Tracer) for x in leaves):
        return data
    arrays = {
        f"{of}_{part}": _plain(f"{of}_{part}", getattr(data, f"{of}_{part}"))
        for of in "xy"
        for part in _PARTS
    }
    _check_shapes(arrays)
    _check_inputs(arrays, data.pixel_max)
    _check_targets(arrays, data.num_classes)
    if data.clients is not None:
        arrays["clients"] = _checked_clients(np.asarray(data.clients), len(arrays["x_train"]))
    with jax.ensure_compile_time_eval():
        done = data.replace(**{name: jnp.asarray(array) for name, array in arrays.items()})
    _CHECKED[id(done)] = done
    return done


def _array(name: str, values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ConfigError(f"{name}: must be an array, of rows of one length ({error}).") from None


def _plain(name: str, values: Any) -> NDArray[Any]:
    """The array as uint8, int32 or float32; a bool is a number, as NumPy has it."""
    array = _array(name, values)
    if array.dtype == np.uint8:
        return array if name.startswith("x") else array.astype(np.int32)
    if array.dtype == bool or np.issubdtype(array.dtype, np.integer):
        if array.size and np.abs(array.astype(np.float64)).max() > _LARGEST_INT:
            raise ConfigError(
                f"{name}: holds whole numbers beyond int32; take floats for features."
            )
        return array.astype(np.int32)
    if np.issubdtype(array.dtype, np.floating) or array.dtype == jnp.bfloat16:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            where = np.argwhere(~np.isfinite(array))[0].tolist()
            raise ConfigError(
                f"{name}{where} = {array[tuple(where)]}: must be finite (float32). Leave such "
                "samples out, or fill them."
            )
        return array
    raise ConfigError(f"{name} is of kind {array.dtype}: must be numbers.")


def _check_shapes(arrays: dict[str, NDArray[Any]]) -> None:
    for part in _PARTS:
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.ndim < 2:
            raise ConfigError(
                f"x_{part} has shape {x.shape}: must be [N, ...], a row for each sample; one "
                "feature is x[:, None]."
            )
        if y.ndim == 0 or len(x) != len(y):
            raise ConfigError(
                f"x_{part} has {len(x)} samples and y_{part} has shape {y.shape}: must be as many."
            )
        if not len(x):
            raise ConfigError(f"x_{part} is empty: must have a sample.")
    for of in "xy":
        train, test = arrays[f"{of}_train"], arrays[f"{of}_test"]
        if _form(train) != _form(test):
            raise ConfigError(
                f"{of}_test has samples of shape {test.shape[1:]} and kind {test.dtype}, those of "
                f"{of}_train {train.shape[1:]} and {train.dtype}: must be the same."
            )


def _check_inputs(arrays: dict[str, NDArray[Any]], pixel_max: int) -> None:
    for part in _PARTS:
        x = arrays[f"x_{part}"]
        if pixel_max:
            if x.dtype != np.uint8:
                raise ConfigError(
                    f"x_{part} is {x.dtype}, and pixel_max = {pixel_max}: pixels must be uint8. "
                    "Set pixel_max = 0 for features that are used as they are."
                )
            if x.max() > pixel_max:
                raise ConfigError(
                    f"x_{part} has a pixel of {x.max()}: must be <= pixel_max = {pixel_max}."
                )
        elif x.dtype == np.uint8:
            raise ConfigError(
                f"x_{part} is uint8 and pixel_max = 0: set pixel_max for pixels (255), or use "
                "x.astype(np.float32) for features."
            )
        elif x.dtype == np.int32:
            _check_tokens(f"x_{part}", x)


def _check_tokens(name: str, tokens: NDArray[Any]) -> None:
    if tokens.ndim != 2:
        raise ConfigError(
            f"{name} is of whole numbers and shape {tokens.shape}: tokens must be [N, L]. Pixels "
            "must be uint8, features floats."
        )
    if tokens.min() < 0:
        raise ConfigError(f"{name} has a token of {tokens.min()}: must be >= 0.")


def _check_targets(arrays: dict[str, NDArray[Any]], num_classes: int) -> None:
    for part in _PARTS:
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if y.dtype != np.int32:
            if y.ndim > 2 or not y.size:
                raise ConfigError(f"y_{part} has shape {y.shape}: targets must be [N] or [N, k].")
            continue
        tokens = x.dtype == np.int32 and y.shape == x.shape
        if y.ndim != 1 and not tokens:
            raise ConfigError(
                f"y_{part} has shape {y.shape}: labels must be [N] (y[:, 0], or y.argmax(1) of "
                f"one-hot rows), tokens of the shape of x_{part}, targets of a regression floats."
            )
        for worst in (y.min(), y.max()):
            if not 0 <= worst < num_classes:
                raise ConfigError(
                    f"y_{part} has a {'token' if tokens else 'label'} {worst}: must be >= 0 and < "
                    f"num_classes = {num_classes}."
                )
        if tokens and x.max() >= num_classes:
            raise ConfigError(
                f"x_{part} has a token {x.max()}: must be < num_classes = {num_classes}."
            )


def _num_classes(arrays: dict[str, NDArray[Any]]) -> int:
    found = [arrays[f"y_{part}"] for part in _PARTS]
    if found[0].ndim > 1:
        found += [arrays[f"x_{part}"] for part in _PARTS]
    whole = [y for y in found if y.size and np.issubdtype(y.dtype, np.integer)]
    return max([int(y.max()) + 1 for y in whole], default=1) if len(whole) == len(found) else 1


def _checked_clients(clients: NDArray[Any], num_train: int) -> NDArray[Any]:
    if clients.shape != (num_train,) or not np.issubdtype(clients.dtype, np.integer):
        raise ConfigError(
            f"clients has shape {clients.shape} and kind {clients.dtype}: must be whole numbers "
            f"[{num_train}], one for each training sample. Dataset.of takes names too."
        )
    known = np.unique(clients)
    if not np.array_equal(known, np.arange(len(known))):
        gap = next((k for k, number in enumerate(known) if k != number), len(known))
        raise ConfigError(
            f"clients: nobody has number {gap}, so that client has no sample; numbers must be "
            "0, 1, ... without gaps. Dataset.of numbers clients anew."
        )
    return clients.astype(np.int32)


def _split(arrays: dict[str, NDArray[Any]], share: float, seed: int) -> dict[str, NDArray[Any]]:
    """Training and test set of the samples of x and y, drawn at random."""
    number = len(arrays["x_train"])
    num_test = round(share * number)
    if not 0 < num_test < number:
        raise ConfigError(
            f"test_share = {share}: of {number} samples it leaves {num_test} for the test set; "
            "both sets must have one."
        )
    order = np.random.default_rng(seed).permutation(number)
    # In the order in which they came, so that a natural one of time or client stays.
    test, train = np.sort(order[:num_test]), np.sort(order[num_test:])
    parts = {name: array[train] for name, array in arrays.items()}
    for of in "xy":
        parts[f"{of}_test"] = arrays[f"{of}_train"][test]
    return parts
