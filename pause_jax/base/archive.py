"""JSON files validated with a msgspec schema, and npz files with a digest of their arrays."""

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
    """Decode JSON as an instance of ``kind``. Raise ConfigError if the content is invalid."""
    try:
        # msgspec.json would reject the NaN and infinity values that Python's json module writes.
        return msgspec.convert(json.loads(content), kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: is damaged ({one_line(str(error))}). {advice}") from None


def save_arrays(file: BinaryIO, arrays: Arrays) -> None:
    """Write arrays and their digest to an npz file."""
    members: dict[str, Any] = {**arrays, "digest": digest_of(arrays)}
    np.savez(file, **members)


def load_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Load arrays written by :func:`save_arrays`. Raise ValueError if the file is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = dict(archive)
        if not np.array_equal(arrays.pop("digest"), digest_of(arrays)):
            raise ValueError("checksum mismatch")
    except Exception as error:  # NumPy raises many types of exceptions for damaged files
        raise ValueError(one_line(str(error) or repr(error))) from None
    return arrays


def digest_of(arrays: Arrays) -> NDArray[np.uint8]:
    """Return the SHA-256 digest, uint8 [32], of the arrays' names, dtypes, shapes and bytes."""
    content = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        content.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        content.update(np.ascontiguousarray(array).tobytes())
    return np.frombuffer(content.digest(), np.uint8)
