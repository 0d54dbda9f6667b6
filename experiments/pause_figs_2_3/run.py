"""PAUSE Figs. 2 and 3: CIFAR-10, i.i.d., K = 30, m = 5, eps_bar = 40.

python -m experiments.pause_figs_2_3.run --data-dir FOLDER
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from experiments.common.pause_learning import POLICIES, TARGETS, Setting, curves_of, reproduce
from pause_jax import presets
from pause_jax.learning import Cnn3

HERE = pathlib.Path(__file__).parent
# Simulated seconds of the curves. In this time, fastest would play six times as many rounds as the
# others, long after its model collapsed. It ends after 300 rounds instead, as in the authors' runs.
SECONDS, ROUNDS = 120.0, 300


def setting(data_dir: str | None, rounds: int) -> Setting:
    """Return the setting of both figures."""
    preset = presets.cifar10_small(data_dir=data_dir).override(
        {
            "learning.model": Cnn3(norm="batch"),
            "privacy.budget.total_epsilon": 40.0,
            "eval_every": 5,
            "num_rounds": rounds,
            "max_seconds": SECONDS,
        }
    )
    return Setting(
        title="CIFAR-10, i.i.d., K = 30, m = 5, eps_bar = 40, cnn3 with batch norm",
        figures=(2, 3),
        configs=curves_of(preset, POLICIES),
        target=TARGETS["CIFAR-10"],
        leakage_against="round",
    )


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared CIFAR-10.")] = None,
    seeds: int = 4,
    rounds: int = ROUNDS,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play missing runs, judge the paper's claims, and write the output and figures."""
    reproduce(setting(data_dir, rounds), seeds, out)


if __name__ == "__main__":
    typer.run(main)
