"""Importer for LEAF's JSON files (FEMNIST, Shakespeare and synthetic data).

Format: ``data/*/README.md`` and ``data/*/preprocess/`` in github.com/TalwalkarLab/leaf
(BSD-2-Clause).
"""

from __future__ import annotations

import pathlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pause_jax.base.source_file import content_of
from pause_jax.base.spelling import one_line
from pause_jax.importers.request import Imported, Request, parsed, refuse
from pause_jax.importers.samples import Samples, imported, pixels

# Printable ASCII characters become tokens 1 to 95, and all other characters become token 0.
_FIRST, _LAST = ord(" "), ord("~")


class _User(msgspec.Struct):
    x: list[Any]
    y: list[Any]


class _Users(msgspec.Struct):
    users: list[str]
    num_samples: list[int]
    user_data: dict[str, _User]


def read(request: Request) -> Imported:
    """Read each user's samples from JSON files, or from folders of JSON files.

    A folder may contain the subfolders ``train`` and ``test``. Grey levels become uint8 images, and
    characters become int32 tokens.

    Raises:
      ConfigError: if a file is missing, damaged or not in LEAF's format.
    """
    paths, test_paths = _files(request.paths)
    return imported(paths[0], _users(request, paths), _users(request, test_paths))


def _files(paths: tuple[pathlib.Path, ...]) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    train: list[pathlib.Path] = []
    test: list[pathlib.Path] = []
    for path in paths:
        split = path / "train" if (path / "train").is_dir() else path
        train += sorted(split.glob("*.json")) if split.is_dir() else [split]
        test += sorted((path / "test").glob("*.json"))
    if not train:
        refuse(paths[0], "must be a JSON file, or a folder that contains JSON files")
    return train, test


def _users(request: Request, paths: list[pathlib.Path]) -> Samples:
    found: Samples = {}
    for path in paths:
        content = content_of("FILE", str(path))
        rule = "must be JSON with users, num_samples, and user_data with x and y for each user"
        try:
            told = msgspec.json.decode(content, type=_Users)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            refuse(path, f"{rule} ({one_line(str(error))})")
        if sorted(told.users) != sorted(told.user_data) or len(told.users) != len(told.num_samples):
            refuse(path, "users, num_samples and user_data must list the same users")
        samples = {user: told.user_data[user] for user in told.users}
        for user, counted in zip(told.users, told.num_samples, strict=True):
            if user in found:
                refuse(
                    path,
                    f"user {user!r} is also in an earlier file, but must be in only one file. "
                    "Pass the folder that contains train and test, or merge the files",
                )
            if counted != (number := len(samples[user].y)):
                refuse(path, f"user {user!r} has {number} samples, but num_samples is {counted}")
        rule = (
            "x and y must be lists of equal length that contain numbers or equally long strings "
            "(as in LEAF's FEMNIST, Shakespeare and synthetic data)"
        )
        found |= zip(samples, parsed(path, samples.items(), _samples, rule), strict=True)
        kept = request.kept(found)
        found = {user: found[user] for user in found if user in kept}
    return found


def _samples(user: _User) -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = user.x, user.y
    if len(x) != len(y):
        raise ValueError
    # This rejects CelebA, where x contains file names and y contains numbers.
    if y and isinstance(x[0], str) != isinstance(y[0], str):
        raise ValueError
    targets = _array(y)
    # The label of a text is the character that follows it.
    return _array(x), targets[:, 0] if y and isinstance(y[0], str) else targets


def _array(values: list[Any]) -> NDArray[Any]:
    """Convert numbers to int32 labels, uint8 images or float32 values, or text to int32 tokens."""
    if values and isinstance(values[0], str):
        codes = np.asarray([[ord(letter) for letter in text] for text in values], np.int32)
        printable = (codes >= _FIRST) & (codes <= _LAST)
        return np.where(printable, codes - _FIRST + 1, 0).astype(np.int32)
    numbers = np.asarray(values, np.float64)
    whole = numbers.ndim == 1 and (numbers == np.rint(numbers)).all()
    if whole and (np.abs(numbers) >= 2**31).any():
        raise ValueError("labels must be int32")
    return numbers.astype(np.int32) if whole else pixels(numbers)
