"""BSFL Tables 1 and 2: alpha and beta varied, CIFAR-10 i.i.d., K = 500, m = 25, with cnn3.

python -m experiments.bsfl_tables_1_2.run --data-dir FOLDER
"""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Annotated

import numpy as np
import typer

from experiments.common import claims, learning_figure
from experiments.common.curves import play_all, runs_of
from experiments.common.learning_figure import Curves
from experiments.common.outcome import Outcome
from pause_jax import Reward, SimConfig, presets
from pause_jax.learning import Cnn3

HERE = pathlib.Path(__file__).parent
# Values of Table 3, which hold for the parameter that is not varied.
ALPHA, BETA = 2.0, 1.0


def label(alpha: float, beta: float) -> str:
    """Return the label of a cell."""
    return f"alpha {alpha:g}, beta {beta:g}"


def configs(
    data_dir: str | None, rounds: int, alphas: list[float], betas: list[float]
) -> dict[str, SimConfig]:
    """Return one config per cell; the cell with Table 3's alpha and beta is in both tables."""
    preset = presets.bsfl_cifar10("alsa", data_dir=data_dir)
    preset = preset.replace(num_rounds=rounds, track_regret=False)
    cells = {*((alpha, BETA) for alpha in alphas), *((ALPHA, beta) for beta in betas)}
    return {
        label(alpha, beta): preset.override(
            {"learning.model": Cnn3(), "reward": Reward(alpha=alpha, beta=beta, gamma=0.0)}
        )
        for alpha, beta in sorted(cells)
    }


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder of prepared data sets.")] = None,
    seeds: int = 3,
    rounds: int = 400,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play missing runs, judge the paper's claims, and write the output and figures."""
    paper = json.loads((HERE / "expected.json").read_text())
    tables = {
        f"Table {number}": {
            value: label(value, BETA) if varied == "alpha" else label(ALPHA, value)
            for value in paper[varied]["values"]
        }
        for number, varied in ((1, "alpha"), (2, "beta"))
    }
    played = configs(data_dir, rounds, paper["alpha"]["values"], paper["beta"]["values"])
    curves = Curves(play_all(runs_of(played, seeds), out))
    outcome = Outcome(f"CIFAR-10, i.i.d., cnn3, ALSA, {rounds} rounds; {seeds} seed(s)")
    for (title, cells), varied in zip(tables.items(), ("alpha", "beta"), strict=True):
        outcome.add(f"-- {title}: {varied}; accuracy % and least loss, ours | the paper's")
        theirs = zip(paper[varied]["accuracy"], paper[varied]["loss"], strict=True)
        for (value, name), (accuracy, loss) in zip(cells.items(), theirs, strict=True):
            least = curves.best(name, "test_loss", least=True)
            outcome.add(
                f"{value:6g} {learning_figure.mean_and_error(curves.last(name), 100):>14} "
                f"{np.mean(least):6.3f} | {100 * accuracy:4.0f} {loss:5.2f}"
            )
        best = paper[varied]["best"]
        family = []
        for value, name in cells.items():
            if value == best:
                continue
            claim = f"{title}: {varied} = {best:g} is more accurate than {value:g}"
            ours, other = (100 * np.asarray(curves.last(each)) for each in (cells[best], name))
            family.append(claims.larger(claim, ours, other, "points"))
        outcome.judge(family)
    draw = functools.partial(learning_figure.draw_curves, curves, quantity="test_accuracy")
    learning_figure.save([draw], out, "tables_1_2")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
