"""BSFL Fig. 9: CIFAR-10, i.i.d., ResNet-18, K = 500, m = 25, one seed; for an accelerator.

python -m experiments.bsfl_fig_9.run --data-dir FOLDER
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from experiments.common import bsfl_learning
from pause_jax import presets

HERE = pathlib.Path(__file__).parent


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder of prepared data sets.")] = None,
    seeds: int = 1,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play missing runs, judge the paper's claims, and write the output and figures."""
    bsfl_learning.reproduce(
        "Fig. 9",
        "CIFAR-10, i.i.d., ResNet-18 with batch norm, K = 500, m = 25",
        presets.bsfl_cifar10,
        data_dir,
        iid=True,
        seeds=seeds,
        exact=False,
        out=out,
    )


if __name__ == "__main__":
    typer.run(main)
