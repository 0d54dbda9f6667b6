"""The rules of a data set's arrays: kinds, shapes, values."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError

# Of a data set, the part that each array belongs to.
PARTS = ("train", "test")
_LARGEST_INT = np.iinfo(np.int32).max


def form(x: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and kind of one sample."""
    return x.shape[1:], x.dtype


def as_array(name: str, values: Any) -> NDArray[Any]:
    """The array of what was given. Raises ConfigError for rows of several lengths."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ConfigError(f"{name}: must be an array, of rows of one length ({error}).") from None


def as_numbers(name: str, values: Any) -> NDArray[Any]:
    """The array as uint8, int32 or float32; truth values are features or labels of 0 and 1.

    Raises:
      ConfigError: for entries that are no finite numbers.
    """
    array, is_input = as_array(name, values), name.startswith("x")
    if array.dtype == bool:
        return array.astype(np.float32 if is_input else np.int32)
    if array.dtype == np.uint8:
        return array if is_input else array.astype(np.int32)
    if np.issubdtype(array.dtype, np.integer):
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


def as_count(name: str, value: Any, least: int) -> int:
    """A whole number. Raises ConfigError for anything else, or one below ``least``."""
    try:
        count = operator.index(value)
    except TypeError:
        count = least - 1
    if isinstance(value, bool) or count < least:
        raise ConfigError(f"{name} = {shown(value)}: must be a whole number >= {least}.")
    return count


def check_shapes(arrays: dict[str, NDArray[Any]]) -> None:
    """Raise ConfigError unless there are samples, and as many inputs as targets."""
    for part in PARTS:
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
        if form(train) != form(test):
            raise ConfigError(
                f"{of}_test has samples of shape {test.shape[1:]} and kind {test.dtype}, those of "
                f"{of}_train {train.shape[1:]} and {train.dtype}: must be the same."
            )


def check_inputs(arrays: dict[str, NDArray[Any]], pixel_max: int) -> None:
    """Raise ConfigError unless inputs are pixels, features or tokens."""
    for part in PARTS:
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


def check_targets(arrays: dict[str, NDArray[Any]], num_classes: int) -> None:
    """Raise ConfigError unless targets are labels, numbers or tokens."""
    for part in PARTS:
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


def num_classes_of(arrays: dict[str, NDArray[Any]]) -> int:
    """One more than the largest label or token; 1 for a regression."""
    found = [arrays[f"y_{part}"] for part in PARTS]
    if found[0].ndim > 1:
        found += [arrays[f"x_{part}"] for part in PARTS]
    whole = [y for y in found if y.size and np.issubdtype(y.dtype, np.integer)]
    return max([int(y.max()) + 1 for y in whole], default=1) if len(whole) == len(found) else 1


def checked_clients(
    clients: NDArray[Any], ids: Sequence[str] | None, num_train: int
) -> NDArray[np.int32]:
    """The client of each training sample.

    Raises:
      ConfigError: for a client without a sample, or without an id where others have one.
    """
    if clients.shape != (num_train,) or not np.issubdtype(clients.dtype, np.integer):
        raise ConfigError(
            f"clients has shape {clients.shape} and kind {clients.dtype}: must be whole numbers "
            f"[{num_train}], one for each training sample. Dataset.of takes names too."
        )
    known = np.unique(clients)
    if not np.array_equal(known, np.arange(len(known))):
        missing = next((k for k, number in enumerate(known) if k != number), len(known))
        raise ConfigError(
            f"clients: nobody has number {missing}, so that client has no sample; numbers must be "
            "0, 1, ... without gaps. Dataset.of numbers clients anew, and keeps their ids."
        )
    if ids is not None and (len(ids) != len(known) or len(set(ids)) != len(ids)):
        raise ConfigError(
            f"client_ids has {len(ids)} entries, {len(set(ids))} of them distinct: must be one for "
            f"each of the {len(known)} clients."
        )
    return clients.astype(np.int32)
