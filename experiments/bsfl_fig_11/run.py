"""BSFL Fig. 11: Fashion-MNIST, non-i.i.d., a CNN, K = 500, m = 25.

python -m experiments.bsfl_fig_11.run --data-dir FOLDER
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
    seeds: int = 5,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play missing runs, judge the paper's claims, and write the output and figures."""
    bsfl_learning.reproduce(
        "Fig. 11",
        "Fashion-MNIST, non-i.i.d., cnn3, K = 500, m = 25",
        presets.bsfl_fashion_noniid,
        data_dir,
        iid=False,
        seeds=seeds,
        out=out,
    )


if __name__ == "__main__":
    typer.run(main)
