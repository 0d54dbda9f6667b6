"""Reproduce BSFL Fig. 2: the generalization reward against a client's participation rate.

python -m experiments.bsfl_fig_2.run
"""

from __future__ import annotations

import json
import pathlib
from typing import Annotated

import typer

from experiments.common.outcome import Outcome
from experiments.common.reward_curve import compare, curves, draw

HERE = pathlib.Path(__file__).parent
BETAS = (0.1, 0.8, 1.0, 1.2, 5.0)


def main(
    clients: int = 20,
    selected: int = 5,
    rounds: int = 600,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Compute, draw and check the curves. Exit with status 1 if a check fails."""
    outcome = Outcome(f"K = {clients}, m = {selected}, equal shares, t = {rounds}")
    g = curves(BETAS, clients, selected, rounds)
    expected = json.loads((HERE / "expected.json").read_text())
    compare("Fig. 2", g, clients, selected, expected, outcome)
    draw(g, selected / clients, r"$c_{k,t} / t$", out / "figures" / "generalization_reward.png")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
