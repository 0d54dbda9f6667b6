"""Data sets as a few .npz files, for machines without network or tensorflow-datasets.

    python -m benchmarks data-parts --data-dir PREPARED --out FOLDER

``PREPARED`` holds MNIST and CIFAR-10 as prepared by tensorflow-datasets.
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import numpy as np
import typer

from pause_jax.learning import Cifar10, Dataset, Mnist

# Maximum bytes of a part before compression.
MOST = 56 * 2**20
_ARRAYS = ("x", "y", "x_test", "y_test")


def write(name: str, data: Dataset, folder: pathlib.Path, most: int = MOST) -> list[pathlib.Path]:
    """Write ``NAME-I-of-N.npz``, each with the I-th share of training and test samples.

    Args:
      name: name of the data set.
      data: data set. The parts do not store its number of classes, so :func:`read` infers it from
        the labels.
      folder: output folder.
      most: maximum bytes of a part before compression.

    Returns:
      Paths of the parts.
    """
    arrays = [np.asarray(a) for a in (data.x_train, data.y_train, data.x_test, data.y_test)]
    count = -(-sum(array.nbytes for array in arrays) // most)
    shares = [np.array_split(array, count) for array in arrays]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}-{i + 1}-of-{count}.npz" for i in range(count)]
    for path, share in zip(paths, zip(*shares, strict=True), strict=True):
        np.savez_compressed(path, **dict(zip(_ARRAYS, share, strict=True)))
    return paths


def read(name: str, folder: pathlib.Path) -> Dataset | None:
    """Read a data set, or return None if the folder lacks a part."""
    found = sorted(folder.glob(f"{name}-*-of-*.npz"))
    if not found or len(found) != int(found[0].stem.rpartition("-")[2]):
        return None
    # By number, not by name: 10 comes after 9.
    found.sort(key=lambda path: int(path.stem.split("-")[-3]))
    shares = []
    for path in found:
        with np.load(path) as file:
            shares.append([file[array] for array in _ARRAYS])
    x, y, x_test, y_test = (np.concatenate(share) for share in zip(*shares, strict=True))
    return Dataset.of(x, y, x_test, y_test)


def main(
    data_dir: Annotated[str, typer.Option(help="Folder with prepared MNIST and CIFAR-10.")],
    out: Annotated[pathlib.Path, typer.Option(help="Where the parts are written.")],
) -> None:
    """Write the parts of both data sets."""
    for config in (Mnist(data_dir=data_dir), Cifar10(data_dir=data_dir)):
        for path in write(config.name, config.load(), out):
            typer.echo(f"{path} {path.stat().st_size / 2**20:.1f} MiB")
