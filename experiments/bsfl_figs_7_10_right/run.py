"""BSFL Figs. 7 and 10, right panels: test loss of linear regression against simulated seconds.

python -m experiments.bsfl_figs_7_10_right.run
"""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from experiments.common import bsfl_learning
from experiments.common.curves import play_all, runs_of
from experiments.common.learning_figure import Curves
from experiments.common.outcome import Outcome
from pause_jax import presets
from pause_jax.learning import StepDecay

HERE = pathlib.Path(__file__).parent
# Rounds of each figure: Table 3's "training time".
FIGURES = {
    "Fig. 7 right": (presets.bsfl_linear, True, 200),
    "Fig. 10 right": (presets.bsfl_linear_noniid, False, 130),
}


def main(
    seeds: int = 20,
    rounds: int | None = None,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Play missing runs, judge the paper's claims, and write the output and figures."""
    outcome = Outcome(f"linear regression, K = 20, m = 5, speed_normal; {seeds} seeds")
    panels: dict[str, Curves] = {}
    for figure, (preset, iid, last) in FIGURES.items():
        num_rounds = rounds or last
        changed = {
            "num_rounds": num_rounds,
            "eval_every": 1,
            "learning.schedule": StepDecay(every=max(1, num_rounds // 4), factor=0.5),
        }
        configs = {
            f"{'' if iid else 'non-i.i.d. '}{label}": config.override(changed)
            for label, config in bsfl_learning.curves_of(preset, None, iid=iid).items()
        }
        table = play_all(runs_of(configs, seeds), out)
        table["label"] = table.label.str.removeprefix("non-i.i.d. ")
        curves = panels[figure] = Curves(table)
        outcome.add(f"-- {figure}", *curves.summary("test_loss"), "")
        unit = "half squared error"
        outcome.judge(bsfl_learning.claims_of(curves, figure, accuracy=False, unit=unit))
    bsfl_learning.draw(panels, out, "loss", accuracy=False)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
