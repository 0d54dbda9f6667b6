"""LEAF's JSON: FEMNIST, Shakespeare, Reddit, and its synthetic data, by user.

Format: ``data/*/README.md``, ``data/*/preprocess/`` and ``data/reddit/source/preprocess.py`` of
github.com/TalwalkarLab/leaf (BSD-2-Clause).
"""

from __future__ import annotations

import itertools
import pathlib
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pause_jax.analysis.importers.request import (
    WRONG,
    Imported,
    Request,
    Rows,
    json_of,
    parsed,
    refuse,
)
from pause_jax.analysis.importers.samples import Samples, imported, pixels

# Characters: printable ASCII is 1 to 95, all else 0.
_FIRST, _LAST = ord(" "), ord("~")
# Words of Reddit: those two, and as many as LEAF's own vocabulary has.
_PADDING, _UNKNOWN, _WORDS = "<PAD>", "<UNK>", 10_000
Users = dict[str, tuple[list[Any], list[Any]]]


def read(request: Request) -> Imported:
    """The samples of each user of JSON files, or of folders of them.

    A folder may hold the folders ``train`` and ``test``. Pixels become uint8 images, characters and
    words tokens; a sample of Reddit is a sequence of words, its target the sequence that follows.

    Raises:
      ConfigError: if a file is not LEAF's, or is damaged.
    """
    train, test = _files(request.paths)
    samples = _users(request, train)
    path = train[0]
    tables: dict[str, Rows] = {}
    words = any(y and isinstance(y[0], list) and _is_text(y[0]) for _, y in samples.values())
    vocabulary = _vocabulary(samples) if words else {}
    if words:
        tables["vocabulary.csv"] = [("token", "word"), *((k, w) for w, k in vocabulary.items())]
    tested = {user: part for user, part in _users(request, test).items() if user in samples}
    return imported(
        path, _arrays(path, samples, vocabulary), _arrays(path, tested, vocabulary), tables
    )


def _files(paths: tuple[pathlib.Path, ...]) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """JSON files to train on, and to test on."""
    train: list[pathlib.Path] = []
    test: list[pathlib.Path] = []
    for path in paths:
        if not path.is_dir():
            train.append(path)
            continue
        split = path / "train"
        train += sorted((split if split.is_dir() else path).glob("*.json"))
        test += sorted((path / "test").glob("*.json")) if split.is_dir() else []
    if not train:
        refuse(paths[0], "must be a JSON file, or a folder of such, and has none")
    return train, test


def _users(request: Request, paths: list[pathlib.Path]) -> Users:
    """Lists x and y of each user that is kept; those of Reddit by sequence."""
    found: Users = {}
    for path in paths:
        content = json_of(path)
        try:
            users, data = content["users"], content["user_data"]
            own = {user: (data[user]["x"], data[user]["y"]) for user in users}
        except WRONG:
            refuse(path, "must have users, num_samples and user_data with x and y of each user")
        rule = "x and y must be lists of one length, of Reddit with target_tokens in y"
        found |= zip(own, parsed(path, own.items(), _samples, rule), strict=True)
        kept = request.kept(found)
        found = {user: found[user] for user in found if user in kept}
    return found


def _samples(own: tuple[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Inputs and targets of a user, of Reddit's comments sequences of words."""
    x, y = own
    if y and isinstance(y[0], dict):
        x, y = (
            list(itertools.chain(*comments))
            for comments in (x, [each["target_tokens"] for each in y])
        )
        words = itertools.chain(*x, *y)
        if not all(isinstance(word, str) for word in words):
            raise ValueError
    if not isinstance(x, list) or len(x) != len(y):
        raise ValueError
    return x, y


def _is_text(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _vocabulary(samples: Users) -> dict[str, int]:
    """Tokens of the most frequent words: of padding 0, of all words that are not in it 1."""
    count = Counter(word for x, _ in samples.values() for sequence in x for word in sequence)
    del count[_PADDING], count[_UNKNOWN]
    known = sorted(count, key=lambda word: (-count[word], word))[: _WORDS - 2]
    return {word: token for token, word in enumerate((_PADDING, _UNKNOWN, *known))}


def _arrays(
    path: pathlib.Path,
    samples: Users,
    vocabulary: dict[str, int],
) -> Samples:
    def array(user: str, values: list[Any]) -> NDArray[Any]:
        try:
            if vocabulary:
                return np.asarray([[vocabulary.get(word, 1) for word in row] for row in values])
            if _is_text(values):
                return _characters(values)
            numbers = np.asarray(values, np.float64)
        except (TypeError, ValueError):
            refuse(
                path,
                f"samples of user {user!r} must be numbers, texts of one length or sequences of "
                "words (of LEAF: FEMNIST, Shakespeare, Reddit, the synthetic data)",
            )
        whole = numbers.ndim == 1 and (numbers == np.rint(numbers)).all()
        return numbers.astype(np.int32) if whole else pixels(numbers)

    def targets(user: str, values: list[Any]) -> NDArray[Any]:
        found = array(user, values)
        # The character that follows a text is its label.
        return found[:, 0] if _is_text(values) and not vocabulary else found

    return {user: (array(user, x), targets(user, y)) for user, (x, y) in samples.items()}


def _characters(texts: list[str]) -> NDArray[np.int32]:
    """Tokens [n, length]."""
    if len({len(text) for text in texts}) != 1:
        raise ValueError
    codes = np.asarray([[ord(letter) for letter in text] for text in texts], np.int32)
    return np.where((codes >= _FIRST) & (codes <= _LAST), codes - _FIRST + 1, 0).astype(np.int32)
