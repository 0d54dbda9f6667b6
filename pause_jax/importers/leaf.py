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

from pause_jax.importers.request import (
    WRONG,
    Imported,
    Request,
    Rows,
    json_of,
    parsed,
    refuse,
)
from pause_jax.importers.samples import imported, pixels

# Characters: printable ASCII is 1 to 95, all else 0.
_FIRST, _LAST = ord(" "), ord("~")
# Words of Reddit: those two, and as many as LEAF's own vocabulary has.
_PADDING, _UNKNOWN, _WORDS = "<PAD>", "<UNK>", 10_000
# Of each user inputs and targets: arrays, or of Reddit lists of sequences of words.
Users = dict[str, tuple[Any, Any]]


def read(request: Request) -> Imported:
    """The samples of each user of JSON files, or of folders of them.

    A folder may hold the folders ``train`` and ``test``. Pixels become uint8 images, characters and
    words tokens; a sample of Reddit is a sequence of words, its target the sequence that follows.

    Raises:
      ConfigError: if a file is not LEAF's, or is damaged.
    """
    paths, test_paths = _files(request.paths)
    train, test = _users(request, paths), _users(request, test_paths)
    tables: dict[str, Rows] = {}
    if any(isinstance(x, list) for x, _ in train.values()):
        token = _vocabulary(train)
        tables["vocabulary.csv"] = [("token", "word"), *((k, word) for word, k in token.items())]
        train, test = (
            {user: (_tokens(x, token), _tokens(y, token)) for user, (x, y) in part.items()}
            for part in (train, test)
        )
    return imported(paths[0], train, test, tables)


def _files(paths: tuple[pathlib.Path, ...]) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """JSON files to train on, and to test on."""
    train: list[pathlib.Path] = []
    test: list[pathlib.Path] = []
    for path in paths:
        split = path / "train" if (path / "train").is_dir() else path
        train += sorted(split.glob("*.json")) if split.is_dir() else [split]
        test += sorted((path / "test").glob("*.json"))
    if not train:
        refuse(paths[0], "must be a JSON file, or a folder of such, and has none")
    return train, test


def _users(request: Request, paths: list[pathlib.Path]) -> Users:
    """The samples of each user that is kept."""
    found: Users = {}
    for path in paths:
        content = json_of(path)
        try:
            users, data = content["users"], content["user_data"]
            own = {user: (data[user]["x"], data[user]["y"]) for user in users}
        except WRONG:
            refuse(path, "must have users, num_samples and user_data with x and y of each user")
        rule = (
            "x and y must be lists of one length: numbers, texts of one length, or words with "
            "target_tokens (of LEAF: FEMNIST, Shakespeare, Reddit, the synthetic data)"
        )
        found |= zip(own, parsed(path, own.items(), _samples, rule), strict=True)
        kept = request.kept(found)
        found = {user: found[user] for user in found if user in kept}
    return found


def _samples(own: tuple[Any, Any]) -> tuple[Any, Any]:
    """Inputs and targets of a user; of Reddit's comments sequences of words."""
    x, y = own
    if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
        raise ValueError
    if y and isinstance(y[0], dict):
        x, y = (
            list(itertools.chain(*comments))
            for comments in (x, [each["target_tokens"] for each in y])
        )
        if not all(isinstance(word, str) for word in itertools.chain(*x, *y)):
            raise ValueError
    elif y:
        # The character that follows a text is its label. CelebA's texts are names of files.
        if isinstance(x[0], str) != isinstance(y[0], str):
            raise ValueError
        x, y = _array(x), _array(y)[:, 0] if isinstance(y[0], str) else _array(y)
    if len(x) != len(y):
        raise ValueError
    return x, y


def _array(values: list[Any]) -> NDArray[Any]:
    """Numbers, or the tokens [n, length] of texts."""
    if isinstance(values[0], str):
        codes = np.asarray([[ord(letter) for letter in text] for text in values], np.int32)
        printable = (codes >= _FIRST) & (codes <= _LAST)
        return np.where(printable, codes - _FIRST + 1, 0).astype(np.int32)
    numbers = np.asarray(values, np.float64)
    whole = numbers.ndim == 1 and (numbers == np.rint(numbers)).all()
    return numbers.astype(np.int32) if whole else pixels(numbers)


def _vocabulary(samples: Users) -> dict[str, int]:
    """Tokens of the most frequent words: of padding 0, of all words that are not in it 1."""
    count = Counter(word for x, _ in samples.values() for sequence in x for word in sequence)
    del count[_PADDING], count[_UNKNOWN]
    known = sorted(count, key=lambda word: (-count[word], word))[: _WORDS - 2]
    return {word: token for token, word in enumerate((_PADDING, _UNKNOWN, *known))}


def _tokens(sequences: Any, token: dict[str, int]) -> NDArray[np.int32]:
    return np.asarray([[token.get(word, 1) for word in words] for words in sequences], np.int32)
