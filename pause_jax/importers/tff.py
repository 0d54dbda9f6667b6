"""TensorFlow Federated's EMNIST by writer: its SQLite file, or the HDF5 files before it.

Format: ``SqlClientData`` and ``emnist.load_data`` of tensorflow.org/federated (Apache-2.0); an
example is a ``tf.train.Example``, in the wire format of protobuf.dev.
"""

from __future__ import annotations

import pathlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from pause_jax.base.source_file import check_regular
from pause_jax.base.struct import ConfigError
from pause_jax.importers.request import Imported, Request, parsed, refuse
from pause_jax.importers.samples import Samples, imported, pixels


def read(request: Request) -> Imported:
    """Images of each writer; the test set is the split ``test``, or the HDF5 file of that name.

    Raises:
      ConfigError: if a file is neither, or is damaged.
    """
    train: Samples = {}
    test: Samples = {}
    for path in request.paths:
        check_regular("FILE", str(path))
        with path.open("rb") as file:
            head = file.read(16)
        if head.startswith(b"SQLite format 3"):
            train |= _sqlite(request, path, "train")
            test |= _sqlite(request, path, "test")
        elif head.startswith(b"\x89HDF"):
            (test if "test" in path.name else train).update(_hdf5(request, path))
        elif head.startswith((b"\xfd7zXZ", b"]\x00\x00")):
            refuse(path, "is packed. Unpack it first: xz --decompress FILE")
        else:
            refuse(path, "must be an SQLite or an HDF5 file of TensorFlow Federated")
    return imported(request.paths[0], train, test)


def _sqlite(request: Request, path: pathlib.Path, split: str) -> Samples:
    """The samples of one split."""
    found: Samples = {}
    query = "SELECT rowid, serialized_example_proto FROM examples WHERE client_id = ?"
    query += " AND split_name = ?"
    rule = f"must be a tf.train.Example with pixels and label ({split})"
    try:
        with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as database:
            writers = database.execute("SELECT DISTINCT client_id FROM client_metadata")
            for writer in sorted(request.kept({str(writer) for (writer,) in writers})):
                rows = database.execute(query, (writer, split))
                if own := list(parsed(path, rows, _example, f"{rule}, of writer {writer}")):
                    images, labels = zip(*own, strict=True)
                    found[writer] = _arrays(path, writer, np.stack(images), np.asarray(labels))
    except (sqlite3.Error, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        refuse(path, f"must have TensorFlow Federated's tables examples, client_metadata ({error})")
    return found


def _hdf5(request: Request, path: pathlib.Path) -> Samples:
    try:
        with h5py.File(path) as file:
            examples = file["examples"]
            kept = sorted(request.kept(set(examples)))
            arrays = {
                user: (np.asarray(examples[user]["pixels"]), np.asarray(examples[user]["label"]))
                for user in kept
            }
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        refuse(path, f"must have examples/WRITER/pixels and label of each writer ({error})")
    return {user: _arrays(path, user, *own) for user, own in arrays.items()}


def _arrays(
    path: pathlib.Path, user: str, images: NDArray[Any], labels: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    if not (
        np.issubdtype(images.dtype, np.floating)
        and np.issubdtype(labels.dtype, np.integer)
        and np.isfinite(images).all()
    ):
        refuse(path, f"pixels of writer {user!r} must be finite floats, labels whole numbers")
    return pixels(images), labels.reshape(len(labels)).astype(np.int32)


def _example(record: bytes) -> tuple[NDArray[np.float32], int]:
    """Pixels and label of a ``tf.train.Example``: a map of names to lists of numbers."""
    ((_, features),) = _fields(record)
    entries = (sorted(_fields(entry)) for _, entry in _fields(features))
    named = {name: feature for (_, name), (_, feature) in entries}
    # A feature of kind 2 is a list of floats, of kind 3 of whole numbers.
    ((floats, pixel_list),), ((integers, label_list),) = (
        _fields(named[name]) for name in (b"pixels", b"label")
    )
    ((_, values),), ((_, label),) = _fields(pixel_list), _fields(label_list)
    if (floats, integers) != (2, 3):
        raise ValueError
    return np.frombuffer(values, "<f4"), _varint(label, 0)[0]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The number of each field of a message, and its content; lists of numbers are one field."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        size, place = _varint(message, place)
        if tag & 7 != 2 or place + size > len(message):
            raise ValueError
        yield tag >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A whole number, seven bits a byte, and the place after it."""
    value = shift = 0
    while True:
        value |= (message[place] & 127) << shift
        place, shift = place + 1, shift + 7
        if message[place - 1] < 128:
            return value, place
