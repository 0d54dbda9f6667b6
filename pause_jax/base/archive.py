"""Files that the library reads back: JSON by a schema of msgspec, arrays with their digest."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from pause_jax.base.spelling import one_line
from pause_jax.base.struct import ConfigError

T = TypeVar("T")
Arrays = Mapping[str, NDArray[Any]]


def decoded(where: object, content: str | bytes, kind: type[T], advice: str) -> T:
    """Return JSON as an object of a class; ConfigError names the field that breaks its schema."""
    try:
        # JSON of Python, which has NaN and infinity.
        return msgspec.convert(json.loads(content), kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: is damaged ({one_line(str(error))}). {advice}") from None


def save_arrays(file: BinaryIO, arrays: Arrays) -> None:
    """Write arrays as an npz file, with their digest."""
    members: dict[str, Any] = {**arrays, "digest": _digest(arrays)}
    np.savez(file, **members)


def load_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Return what :func:`save_arrays` wrote. Raises ValueError if it is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = dict(archive)
        if not np.array_equal(arrays.pop("digest"), _digest(arrays)):
            raise ValueError("not what was saved")
    except Exception as error:  # whatever a damaged zip file makes of itself
        raise ValueError(one_line(str(error) or repr(error))) from None
    return arrays


def _digest(arrays: Arrays) -> NDArray[np.uint8]:
    """Return the SHA-256 of arrays with their names, kinds and shapes."""
    content = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        content.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        content.update(np.ascontiguousarray(array).tobytes())
    return np.frombuffer(content.digest(), np.uint8)
