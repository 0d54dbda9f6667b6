"""``Dataset`` class for data stored on the device, and validation of its arrays."""

from __future__ import annotations

import functools
import hashlib
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax.base.client_ids import numbered
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError, PyTree, static

PARTS = ("train", "test")


class Dataset(PyTree):
    """Data set stored on the device. :meth:`of` builds one from custom arrays.

    Attributes:
      x_train, x_test: uint8 pixels [N, ...], float32 features [N, ...] (not scaled) or int32
        tokens [N, L].
      y_train, y_test: int32 labels [N], float32 targets [N] or [N, k], or int32 tokens [N, L].
      clients: int32 [N], each training sample's client number; None if unknown. Clients are
        numbered 0, 1, ... without gaps. The ``natural`` partition requires ``clients``.
      client_ids: client ids, ordered by client number; None if clients have no ids (static).
      pixel_max: largest possible pixel value. Models receive (x / pixel_max - 0.5) / 0.5. Features
        and tokens have ``pixel_max = 0`` and are not scaled.
      num_classes: number of labels or vocabulary tokens; not used for regression.
      start: initial weights, keyed by leaf path, from ``Learning.start``; None to draw all weights.
    """

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    clients: Array | None = None
    start: dict[str, Array] | None = None
    client_ids: tuple[str, ...] | None = static(default=None, optional=True, kind=str)
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
        """Build a validated data set from arrays.

        Args:
          x: inputs, as uint8 pixels [N, ...], float or boolean features [N, ...], or integer tokens
            [N, L].
          y: targets, as integer (>= 0) or boolean labels [N], float regression targets [N] or
            [N, k], or integer tokens [N, L].
          x_test: inputs of the test set. By default, test samples are drawn from ``x`` and ``y``.
          y_test: targets of the test set, required with ``x_test``.
          clients: each sample's client id [N], an integer >= 0 or a name. Clients are numbered in
            the natural order of their ids ("site2" before "site10"). Results and fleet files
            use these ids.
          pixel_max: largest possible pixel value (default: 255 for uint8 inputs, otherwise 0).
          num_classes: number of labels or tokens; by default the largest label or token plus 1.
          test_share: share of the samples to draw as the test set if ``x_test`` is None. Every
            client keeps at least one training sample.
          seed: random seed for drawing the test set.

        Raises:
          ConfigError: if the arrays are inconsistent or invalid.

        Examples:
          >>> import numpy as np
          >>> from pause_jax.learning import Dataset
          >>> data = Dataset.of(np.zeros((50, 4)), np.arange(50) % 3)
          >>> data.x_train.shape, data.x_test.shape, data.num_classes
          ((40, 4), (10, 4), 3)
        """
        if (x_test is None) != (y_test is None):
            raise ConfigError(
                "x_test and y_test: must be passed together. Omit both to draw the test set from "
                "x and y."
            )
        arrays = {"x_train": as_numbers("x", x), "y_train": as_numbers("y", y)}
        ids = None
        if clients is not None:
            arrays["clients"] = as_array("clients", clients)
        for name, array in arrays.items():
            _check_length(name, array, len(np.atleast_1d(arrays["x_train"])))
        if clients is not None:
            ids, arrays["clients"] = numbered("clients", arrays["clients"])
        if x_test is None:
            arrays = _split(arrays, test_share, seed)
        else:
            arrays["x_test"] = as_numbers("x_test", x_test)
            arrays["y_test"] = as_numbers("y_test", y_test)
        if pixel_max is None:
            pixel_max = 255 if arrays["x_train"].dtype == np.uint8 else 0
        if num_classes is None:
            num_classes = num_classes_of(arrays)
        return checked(
            cls(**arrays, client_ids=ids, pixel_max=pixel_max, num_classes=num_classes)  # type: ignore[arg-type]
        )

    def __repr__(self) -> str:
        """Return a summary with shapes and dtypes instead of the array contents."""
        named = {name: getattr(self, name) for name in ("x_train", "y_train", "x_test", "y_test")}
        parts = [f"{k}={getattr(x, 'dtype', '?')}{list(np.shape(x))}" for k, x in named.items()]
        if self.client_ids is not None:
            parts.append(f"{len(self.client_ids)} clients")
        sizes = f"pixel_max={self.pixel_max}, num_classes={self.num_classes}"
        return f"Dataset({', '.join(parts)}, {sizes})"

    def to_input(self, x: Array) -> Array:
        """Return model inputs, with pixels scaled to [-1, 1] and other values unchanged."""
        if self.pixel_max == 0:
            return x
        return x.astype(jnp.float32) * (2.0 / self.pixel_max) - 1.0

    @property
    def sample(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of a single model input, without the batch axis."""
        return jax.eval_shape(self.to_input, jax.ShapeDtypeStruct(*form(self.x_train)))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 hash of all arrays, which identifies the data in results."""
        content = hashlib.sha256()
        for leaf in jax.tree.leaves(self):
            array = np.ascontiguousarray(leaf)
            content.update(f"{array.dtype} {array.shape}".encode())
            content.update(array.data)
        content.update(" ".join(self.start or ()).encode())
        return content.hexdigest()


# Validated data sets, keyed by ``id(data)``.
_CHECKED: weakref.WeakValueDictionary[int, Dataset] = weakref.WeakValueDictionary()


def checked(data: Dataset) -> Dataset:
    """Validate a data set, convert its arrays to the library's dtypes and put them on the device.

    Traced and already validated data sets are returned unchanged.
    """
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"data = {type(data).__name__}: must be a pause_jax.learning.Dataset, or None for the "
            "config's data set. Build one with Dataset.of(x, y)."
        )
    leaves = jax.tree.leaves(data)
    if _CHECKED.get(id(data)) is data or any(isinstance(x, jax.core.Tracer) for x in leaves):
        return data
    pixel_max = as_count("pixel_max", data.pixel_max, 0)
    num_classes = as_count("num_classes", data.num_classes, 1)
    arrays = {
        f"{of}_{part}": as_numbers(f"{of}_{part}", getattr(data, f"{of}_{part}"))
        for of in "xy"
        for part in PARTS
    }
    _check_shapes(arrays)
    for part in PARTS:
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        _check_inputs(f"x_{part}", x, pixel_max)
        _check_targets(part, x, y, num_classes)
    if data.clients is not None:
        numbers, count = np.asarray(data.clients), len(arrays["x_train"])
        arrays["clients"] = _check_clients(numbers, data.client_ids, count)
    with jax.ensure_compile_time_eval():
        placed = {name: jax.device_put(array, may_alias=False) for name, array in arrays.items()}
        done = data.replace(**placed, pixel_max=pixel_max, num_classes=num_classes)
    _CHECKED[id(done)] = done
    return done


def with_weights(data: Dataset, weights: Mapping[str, Any] | None) -> Dataset:
    """Put ``weights`` on the device, and return validated ``data`` with these initial weights."""
    if weights is None and data.start is None:
        return data
    with jax.ensure_compile_time_eval():
        done = data.replace(start=None if weights is None else jax.device_put(dict(weights)))
    _CHECKED[id(done)] = done
    return done


def _split(arrays: dict[str, NDArray[Any]], share: float, seed: int) -> dict[str, NDArray[Any]]:
    number = len(arrays["x_train"])
    num_test = round(share * number) if 0 < share < 1 else 0
    test = np.random.default_rng(as_count("seed", seed, 0)).permutation(number)[:num_test]
    if "clients" in arrays:
        # Keep one training sample for each client that would otherwise have none.
        tested = arrays["clients"][test]
        drawn, first, times = np.unique(tested, return_index=True, return_counts=True)
        test = np.delete(test, first[np.bincount(arrays["clients"])[drawn] == times])
    test = np.sort(test)  # keep the original order, which may be chronological or grouped by client
    if not 0 < len(test) < number:
        raise ConfigError(
            f"test_share = {share}: yields {len(test)} test samples out of {number}, but must "
            "yield at least one and leave one training sample per client. Pass x_test and y_test."
        )
    train = np.setdiff1d(np.arange(number), test)
    parts = {name: array[train] for name, array in arrays.items()}
    for of in "xy":
        parts[f"{of}_test"] = arrays[f"{of}_train"][test]
    return parts


def form(x: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape and dtype of a single sample."""
    return x.shape[1:], x.dtype


def as_array(name: str, values: Any) -> NDArray[Any]:
    """Convert ``values`` to an array, or raise ConfigError for ragged rows, masks or dates."""
    if np.ma.is_masked(values):
        raise ConfigError(f"{name}: has masked entries. Fill them in, or remove these samples.")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ConfigError(
            f"{name}: must be an array with rows of equal length ({error})."
        ) from None
    if array.dtype.kind in "mM":
        raise ConfigError(f"{name} has dtype {array.dtype}: must be numbers.")
    return array


def as_numbers(name: str, values: Any) -> NDArray[Any]:
    """Convert finite numbers to uint8, int32 or float32. Raise ConfigError for all other values."""
    array = as_array(name, values)
    is_input = name.startswith("x")
    if array.dtype == bool:
        return array.astype(np.float32 if is_input else np.int32)
    if array.dtype == np.uint8:
        return array if is_input else array.astype(np.int32)
    if np.issubdtype(array.dtype, np.integer):
        if array.size and np.abs(array.astype(np.float64)).max() > np.iinfo(np.int32).max:
            raise ConfigError(f"{name}: integers must fit in int32. Use floats for features.")
        return array.astype(np.int32)
    if not (np.issubdtype(array.dtype, np.floating) or array.dtype == jnp.bfloat16):
        raise ConfigError(f"{name} has dtype {array.dtype}: must be numbers.")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ConfigError(
            f"{name}{place} = {array[tuple(place)]}: must be finite (float32). Replace "
            "non-finite values or remove their samples."
        )
    return array


def as_count(name: str, value: Any, least: int) -> int:
    """Convert ``value`` to an int, or raise ConfigError if it is not an integer >= ``least``."""
    try:
        count = operator.index(value)
    except TypeError:
        count = least - 1
    if isinstance(value, bool) or count < least:
        raise ConfigError(f"{name} = {shown(value)}: must be a whole number >= {least}.")
    return count


def _check_length(name: str, array: NDArray[Any], number: int) -> None:
    if array.ndim == 0 or len(array) != number or (name == "clients" and array.ndim != 1):
        raise ConfigError(
            f"{name} has shape {array.shape}: must have one entry for each of the {number} samples."
        )


def _check_shapes(arrays: dict[str, NDArray[Any]]) -> None:
    for part in PARTS:
        x = arrays[f"x_{part}"]
        if x.ndim < 2:
            raise ConfigError(
                f"x_{part} has shape {x.shape}: must be [N, ...], one row per sample. Use x[:, "
                "None] for a single feature."
            )
        _check_length(f"y_{part}", arrays[f"y_{part}"], len(x))
        if not len(x):
            raise ConfigError(f"x_{part} is empty: must have at least one sample.")
    for kind in "xy":
        train, test = form(arrays[f"{kind}_train"]), form(arrays[f"{kind}_test"])
        if train != test:
            raise ConfigError(
                f"samples of {kind}_test have shape {test[0]} and dtype {test[1]}, but samples of "
                f"{kind}_train have {train[0]} and {train[1]}: must be the same."
            )


def _check_inputs(name: str, x: NDArray[Any], pixel_max: int) -> None:
    if pixel_max and x.dtype != np.uint8:
        raise ConfigError(
            f"{name} is {x.dtype}, and pixel_max = {pixel_max}: pixels must be uint8. Set "
            "pixel_max = 0 to leave features unscaled."
        )
    if pixel_max and x.max() > pixel_max:
        raise ConfigError(f"{name} has a pixel of {x.max()}: must be <= pixel_max = {pixel_max}.")
    if not pixel_max and x.dtype == np.uint8:
        raise ConfigError(
            f"{name} is uint8, but pixel_max = 0: pixel_max must be > 0. Set pixel_max = 255 for "
            "pixels, or use x.astype(np.float32) for features."
        )
    if x.dtype == np.int32 and x.ndim != 2:
        raise ConfigError(
            f"{name} has integers of shape {x.shape}: tokens must have shape [N, L]. Use "
            "uint8 for pixels, and floats for features."
        )
    if x.dtype == np.int32 and x.min() < 0:
        raise ConfigError(f"{name} has a token of {x.min()}: must be >= 0.")


def _check_targets(part: str, x: NDArray[Any], y: NDArray[Any], num_classes: int) -> None:
    if y.dtype != np.int32:
        if y.ndim > 2 or not y.size:
            raise ConfigError(f"y_{part} has shape {y.shape}: must have shape [N] or [N, k].")
        return
    are_tokens = x.dtype == np.int32 and y.shape == x.shape
    if y.ndim != 1 and not are_tokens:
        raise ConfigError(
            f"y_{part} has shape {y.shape}: labels must have shape [N], and tokens must have the "
            f"shape of x_{part}. Use y[:, 0] for a column, y.argmax(1) for one-hot rows, and "
            "floats for regression."
        )
    word = "token" if are_tokens else "label"
    for name, values in (("y", y), ("x", x)) if are_tokens else (("y", y),):
        for extreme in (values.min(), values.max()):
            if not 0 <= extreme < num_classes:
                raise ConfigError(
                    f"{name}_{part} has a {word} {extreme}: must be >= 0 and < num_classes = "
                    f"{num_classes}."
                )


def num_classes_of(arrays: dict[str, NDArray[Any]]) -> int:
    """Return the largest label or token plus one, or 1 for regression."""
    kinds = "xy" if arrays["y_train"].ndim > 1 else "y"
    values = [arrays[f"{kind}_{part}"] for kind in kinds for part in PARTS]
    if not all(value.size and np.issubdtype(value.dtype, np.integer) for value in values):
        return 1
    return max(int(value.max()) for value in values) + 1


def _check_clients(
    clients: NDArray[Any], ids: Sequence[str] | None, num_train: int
) -> NDArray[np.int32]:
    if clients.shape != (num_train,) or not np.issubdtype(clients.dtype, np.integer):
        raise ConfigError(
            f"clients has shape {clients.shape} and dtype {clients.dtype}: must be an integer "
            f"array of shape [{num_train}], with one entry per training sample. Use Dataset.of for "
            "client names."
        )
    numbers = np.unique(clients)
    missing = np.setdiff1d(np.arange(len(numbers)), numbers)
    if missing.size:
        raise ConfigError(
            f"clients: must be numbered 0, 1, ... without gaps, but client {missing[0]} has no "
            "samples. Use Dataset.of, which renumbers clients and keeps their ids."
        )
    if ids is not None and (len(ids) != len(numbers) or len(set(ids)) != len(ids)):
        raise ConfigError(
            f"client_ids has {len(ids)} entries, {len(set(ids))} distinct: must be {len(numbers)} "
            "distinct ids, one per client."
        )
    return clients.astype(np.int32)
