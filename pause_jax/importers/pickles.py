"""Pickle files of numbers, read without calling anything that they name."""

from __future__ import annotations

import io
import pathlib
import pickle
from typing import Any, NoReturn

from pause_jax.base.spelling import shown
from pause_jax.importers.request import WRONG, content_of, refuse


class _NamedError(Exception):
    """A pickle names a class or a function."""


class _NumbersOnly(pickle.Unpickler):
    """Makes containers, texts and numbers, which a pickle writes without naming a class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _NamedError(f"{module}.{name}")


def read(path: pathlib.Path) -> Any:
    """What a pickle file holds: lists, tuples, dictionaries, sets, texts and numbers.

    A pickle calls what it names, so any name is refused: of a class, of a function, and of NumPy's
    arrays as well.

    Raises:
      ConfigError: if it names anything, or is damaged.
    """
    content = content_of(path)
    try:
        return _NumbersOnly(io.BytesIO(content)).load()
    except _NamedError as error:
        refuse(
            path,
            f"names {shown(str(error))}. Of a pickle only numbers, texts and containers are read, "
            "and nothing was run. Take the file from its owner",
        )
    except (*WRONG, pickle.UnpicklingError, EOFError, MemoryError, RecursionError) as error:
        refuse(path, f"must be a whole pickle file ({shown(str(error))})")
