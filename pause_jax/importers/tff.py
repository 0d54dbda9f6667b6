"""Importer for TensorFlow Federated's EMNIST, an SQLite file of ``tf.train.Example`` messages.

Format: ``SqlClientData`` and ``emnist.load_data`` of tensorflow.org/federated (Apache-2.0).
tensorflow-datasets (the extra ``data``) parses the messages without TensorFlow.
"""

from __future__ import annotations

import pathlib
import sqlite3
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pause_jax.base.registry import require
from pause_jax.base.source_file import check_regular
from pause_jax.importers.request import Imported, Request, parsed, refuse
from pause_jax.importers.samples import Samples, imported, pixels

_QUERY = (
    "SELECT rowid, serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ?"
)


def read(request: Request) -> Imported:
    """Read the images and labels of each writer; the split ``test`` becomes the test set.

    Raises:
      ConfigError: if tensorflow-datasets is missing, or if the file is damaged or not EMNIST.
    """
    require("tensorflow_datasets", "data", "tff")
    path = request.path
    check_regular("FILE", str(path))
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith((b"\xfd7zXZ", b"]\x00\x00")):
        refuse(path, "is compressed. Decompress the file first: xz --decompress FILE")
    if not head.startswith(b"SQLite format 3"):
        refuse(path, "must be an SQLite file from TensorFlow Federated")
    return imported(path, _samples(request, path, "train"), _samples(request, path, "test"))


def _samples(request: Request, path: pathlib.Path, split: str) -> Samples:
    found: Samples = {}
    rule = f"must be a tf.train.Example with pixels and label, in split {split}"
    try:
        with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as database:
            writers = database.execute("SELECT DISTINCT client_id FROM client_metadata")
            for writer in sorted(request.kept({str(writer) for (writer,) in writers})):
                rows = database.execute(_QUERY, (writer, split))
                if own := list(parsed(path, rows, _example, f"{rule} of writer {writer}")):
                    images, labels = zip(*own, strict=True)
                    found[writer] = pixels(np.stack(images)), np.asarray(labels, np.int32)
    except sqlite3.Error as error:
        refuse(
            path,
            f"must have the tables examples and client_metadata of TensorFlow Federated ({error})",
        )
    return found


def _example(record: bytes) -> tuple[NDArray[Any], int]:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorflow_datasets.proto.tf_example_generated_pb2 import Example

    try:
        feature = Example.FromString(record).features.feature
    except DecodeError:
        raise ValueError from None
    image = np.asarray(feature["pixels"].float_list.value, np.float32)
    (label,) = feature["label"].int64_list.value
    if image.shape != (28 * 28,) or not np.isfinite(image).all():
        raise ValueError
    return image, int(np.int32(label))
