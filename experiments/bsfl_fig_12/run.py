"""BSFL Fig. 12: CIFAR-10, non-i.i.d., a CNN, K = 500, m = 25.

python -m experiments.bsfl_fig_12.run --data-dir FOLDER
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from experiments.common import bsfl_learning
from pause_jax import SimConfig, presets
from pause_jax.policies import PolicyConfig

HERE = pathlib.Path(__file__).parent
# A hundred times Table 3's 5e-6. At Table 3's rate, Adam moves no weight by more than 2e-3 in 200
# rounds of five steps per client, and accuracy stays at 10 %.
LEARNING_RATE = 5e-4


def preset(policy: str | PolicyConfig = "alsa", data_dir: str | None = None) -> SimConfig:
    """Return the preset with a learning rate at which the model learns."""
    config = presets.bsfl_cifar10_noniid(policy, data_dir=data_dir)
    return config.override({"learning.learning_rate": LEARNING_RATE})


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder of prepared data sets.")] = None,
    seeds: int = 5,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play missing runs, judge the paper's claims, and write the output and figures."""
    bsfl_learning.reproduce(
        "Fig. 12",
        "CIFAR-10, non-i.i.d., cnn3, K = 500, m = 25",
        preset,
        data_dir,
        iid=False,
        seeds=seeds,
        out=out,
    )


if __name__ == "__main__":
    typer.run(main)
