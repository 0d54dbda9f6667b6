"""Cost of noise: accuracy of every mechanism at equal epsilon, in both units.

python -m experiments.noise_cost.run --data-dir FOLDER
"""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Annotated

import numpy as np
import typer

from experiments.common import figures
from experiments.common.outcome import Outcome
from experiments.noise_cost.settings import (
    EPSILONS,
    LAPLACE_EPSILONS,
    Found,
    best,
    play,
    setting,
)

HERE = pathlib.Path(__file__).parent


def tell(
    outcome: Outcome,
    num_parameters: int,
    found: Found,
) -> None:
    """Add the two tables of a setting."""

    def table(title: str, epsilons: tuple[float, ...], scale: float) -> None:
        outcome.add(f"  equal epsilon of {title}, accuracy % (clip)")
        outcome.add("  " + f"{'mechanism':15}" + "".join(f"{e:>19,g}" for e in epsilons))
        for name in dict.fromkeys(name for name, _ in found if name != "none"):
            cells = []
            for e in epsilons:
                own = e / scale if name == "per_coordinate" else e
                entry = found.get((name, own))
                text = f"{entry[0]:.1f}±{entry[1]:.1f} ({entry[2]:g})" if entry else "-"
                cells.append(f"{text:>19}")
            outcome.add("  " + f"{name:15}" + "".join(cells))

    mean, sd, _ = found["none", np.inf]
    outcome.add(f"  d = {num_parameters:,}; without noise {mean:.1f}±{sd:.1f}")
    table("the whole update", EPSILONS, num_parameters)
    table("one coordinate", EPSILONS, 1)
    laplace = [f"{e:g}: {found['l1_vector', e][0]:.1f}" for e in LAPLACE_EPSILONS[len(EPSILONS) :]]
    outcome.add(f"  l1_vector beyond: {', '.join(laplace)}")


def draw(
    results: dict[str, tuple[int, Found]],
    out: pathlib.Path,
) -> None:
    """Draw accuracy against epsilon of the whole update (top) and of one coordinate (bottom)."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, len(results), figsize=(3.6 * len(results), 6.4), sharey=True, squeeze=False
    )
    for column, (title, (num_parameters, found)) in enumerate(results.items()):
        for row, scale in enumerate((num_parameters, 1)):
            panel = axes[row, column]
            for name in dict.fromkeys(name for name, _ in found if name != "none"):
                unit = scale if name == "per_coordinate" else 1
                line = sorted((e * unit, value) for (n, e), value in found.items() if n == name)
                x, y, error = zip(*((e, mean, sd) for e, (mean, sd, _) in line), strict=True)
                panel.errorbar(x, y, error, marker="o", ms=3, lw=1.2, label=name)
            panel.axhline(found["none", np.inf][0], color="black", ls=":", lw=1, label="no noise")
            panel.set_xscale("log")
            panel.set_xlabel(f"eps_bar of {('a whole update', 'one coordinate')[row]}")
        axes[0, column].set_title(title)
    for row in axes:
        row[0].set_ylabel("test accuracy, %")
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figures.save(figure, out, "noise_cost")
    plt.close(figure)


def main(
    data_dir: Annotated[str | None, typer.Option(help="Folder with prepared MNIST.")] = None,
    datasets: str = "digits,mnist",
    networks: str = "30/5,300/15",
    seeds: int = 3,
    rounds: int = 300,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write the tables. Exit with status 1 if a check fails."""
    rules = json.loads((HERE / "expected.json").read_text())
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds, PAUSE, geometric budget, eta = 0.04")
    outcome.add("± is the standard deviation over seeds; of three clips the best by test accuracy")
    results = {}
    for dataset, network in itertools.product(datasets.split(","), networks.split(",")):
        title = f"{dataset}, {network}"
        num_parameters, accuracy = play(setting(dataset, network, data_dir, rounds), seeds)
        found = best(accuracy)
        results[title] = num_parameters, found
        outcome.add(title)
        tell(outcome, num_parameters, found)
        for rule in rules:
            divided = rule["mechanism"] == "per_coordinate" and rule["unit"] == "update"
            epsilon = rule["epsilon"] / (num_parameters if divided else 1)
            value = found[rule["mechanism"], epsilon][0]
            if rule["of_no_noise"]:
                value /= found["none", np.inf][0]
            text = f"{title}: {rule['claim']} ({value:.3g})"
            passed = rule.get("at_least", -np.inf) <= value <= rule.get("at_most", np.inf)
            outcome.check(text, passed)
    draw(results, out)
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
