"""PAUSE Figs. 6 and 7: MNIST, Dirichlet(2) sizes, K = 300, m = 15, eps_bar = 20.

python -m experiments.pause_figs_6_7.run --data-dir FOLDER
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from experiments.common.pause_learning import (
    POLICIES,
    TARGETS,
    Setting,
    curves_of,
    large_network,
    reproduce,
)
from pause_jax import presets

HERE = pathlib.Path(__file__).parent
# Simulated seconds of the curves. The curve of fastest ends after this number of rounds instead.
SECONDS, ROUNDS = 200.0, 1000


def setting(data_dir: str | None, rounds: int) -> Setting:
    """Return the setting of both figures."""
    preset = presets.mnist_large(data_dir=data_dir).override(
        {"eval_every": 5, "num_rounds": rounds, "max_seconds": SECONDS}
    )
    return Setting(
        title="MNIST, Dirichlet(2) sizes, K = 300, m = 15, eps_bar = 20, mlp",
        figures=(6, 7),
        configs=curves_of(preset, large_network(POLICIES)),
        target=TARGETS["MNIST"],
        leakage_against="clock",
    )


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared MNIST.")] = None,
    seeds: int = 20,
    rounds: int = ROUNDS,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play missing runs, judge the paper's claims, and write the output and figures."""
    reproduce(setting(data_dir, rounds), seeds, out)


if __name__ == "__main__":
    typer.run(main)
