"""A custom data set from NumPy files."""

from __future__ import annotations

import os
import pathlib
from typing import ClassVar

import numpy as np

from pause_jax.base.client_ids import natural_order
from pause_jax.base.memory import check_memory
from pause_jax.base.source_file import check_regular, expanded
from pause_jax.base.struct import ConfigError, static
from pause_jax.learning.data import DataConfig
from pause_jax.learning.dataset import Dataset
from pause_jax.learning.decoded import Arrays

_TEST = "test.npz"


class Files(DataConfig):
    """Custom arrays from ``.npz`` files; :meth:`Dataset.of` says what they must hold.

    One file: arrays ``x``, ``y`` and perhaps ``x_test``, ``y_test`` and ``clients``. Or a folder
    with a file for each client (``x``, ``y``), and perhaps ``test.npz``. A file's name without
    ``.npz`` is then the client's id; under the partition ``natural`` client k is the k-th in
    natural order, numbers in names by their value.

    Attributes:
      path: the file or the folder; if relative, to the working directory.
      pixel_max: largest value of a pixel; 255 by default for uint8.
      num_classes: number of labels; one more than the largest by default.
    """

    name: ClassVar[str] = "files"
    summary: ClassVar[str] = "custom arrays: an .npz file, or a folder of one a client"

    path: str = static(default="")
    pixel_max: int | None = static(default=None, at_least=1, optional=True, kind=int)
    num_classes: int | None = static(default=None, at_least=2, optional=True, kind=int)

    def load(self) -> Dataset:
        where = expanded("learning.data.path", self.path)
        if not self.path or not os.path.exists(where):
            raise ConfigError(
                f"learning.data.path = {self.path!r}: must be an .npz file, or a folder of such "
                "files, and there is none."
            )
        arrays = _folder(where) if where.is_dir() else _arrays(where)
        if len(arrays["x"]) == 0:
            raise ConfigError(f"learning.data.path = {self.path!r}: has no sample.")
        try:
            return Dataset.of(**arrays, pixel_max=self.pixel_max, num_classes=self.num_classes)
        except ConfigError as error:
            raise ConfigError(f"learning.data.path = {self.path!r}: {error}") from None


def _folder(folder: pathlib.Path) -> Arrays:
    found = (path for path in folder.glob("*.npz") if path.name != _TEST)
    files = sorted(found, key=lambda path: natural_order(path.stem))
    if not files:
        raise ConfigError(
            f"learning.data.path = {str(folder)!r}: has no .npz file; must have one a client."
        )
    parts = [_arrays(path, only=("x", "y")) for path in files]
    forms = {
        (part["x"].shape[1:], part["y"].shape[1:]): path
        for part, path in zip(parts, files, strict=True)
    }
    if len(forms) > 1:
        (one, first), (other, second), *_ = forms.items()
        raise ConfigError(
            f"learning.data.path = {str(folder)!r}: samples of {first.name} have shapes {one}, of "
            f"{second.name} {other}; must be the same."
        )
    for part, path in zip(parts, files, strict=True):
        if not len(part["x"]) or len(part["x"]) != len(part["y"]):
            raise ConfigError(
                f"{path}: x has {len(part['x'])} samples and y {len(part['y'])}: must be as many, "
                "and at least one, as every client must have a sample."
            )
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in ("x", "y")}
    names = np.asarray([path.stem for path in files])
    arrays["clients"] = np.repeat(names, [len(part["x"]) for part in parts])
    if (folder / _TEST).is_file():
        test = _arrays(folder / _TEST, only=("x", "y"))
        arrays |= {f"{name}_test": test[name] for name in ("x", "y")}
    return arrays


def _arrays(path: pathlib.Path, only: tuple[str, ...] = ()) -> Arrays:
    """The arrays of a file: of ``only``, or ``x``, ``y`` and what goes with them."""
    check_regular("learning.data.path", path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            unpacked = sum(entry.file_size for entry in found.zip.infolist())
            what = f"{path}: its arrays, unpacked,"
            check_memory(unpacked, what, "Use a part of them.")
            arrays = dict(found)
    except ConfigError:
        raise
    except Exception as error:  # NumPy raises many types for what is no such file
        raise ConfigError(f"{path}: must be an .npz file of numbers ({error}).") from None
    known = only or ("x", "y", "x_test", "y_test", "clients")
    missing, unknown = [name for name in "xy" if name not in arrays], set(arrays) - set(known)
    if missing or unknown:
        raise ConfigError(
            f"{path}: has the arrays {', '.join(sorted(arrays)) or 'none'}; must have x and y, and "
            f"may have {', '.join(known[2:]) or 'no other'}."
        )
    for name in ("x", "y"):
        if arrays[name].ndim == 0:
            raise ConfigError(f"{path}: {name} is one number; must be an array, a row a sample.")
    return arrays
