"""PAUSE Figs. 8 and 9: CIFAR-10, non-i.i.d., K = 300, m = 15, eps_bar = 10.

python -m experiments.pause_figs_8_9.run --data-dir FOLDER
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from experiments.common.pause_learning import (
    NON_IID,
    TARGETS,
    Setting,
    curves_of,
    large_network,
    reproduce,
)
from pause_jax import presets
from pause_jax.learning import Cnn3

HERE = pathlib.Path(__file__).parent
# Simulated seconds of the curves. The curve of fastest ends after this number of rounds instead.
SECONDS, ROUNDS = 120.0, 500


def setting(data_dir: str | None, rounds: int) -> Setting:
    """Return the setting of both figures."""
    preset = presets.cifar10_large(data_dir=data_dir).override(
        {
            "learning.model": Cnn3(norm="batch"),
            "eval_every": 5,
            "num_rounds": rounds,
            "max_seconds": SECONDS,
        }
    )
    return Setting(
        title="CIFAR-10, non-i.i.d., K = 300, m = 15, eps_bar = 10, cnn3 with batch norm",
        figures=(8, 9),
        configs=curves_of(preset, large_network(NON_IID)),
        target=TARGETS["CIFAR-10"],
        leakage_against="clock",
    )


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared CIFAR-10.")] = None,
    seeds: int = 3,
    rounds: int = ROUNDS,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play missing runs, judge the paper's claims, and write the output and figures."""
    reproduce(setting(data_dir, rounds), seeds, out)


if __name__ == "__main__":
    typer.run(main)
