"""What the noise costs: accuracy of every mechanism at equal epsilon, in both units.

python -m experiments.noise_cost.run --data-dir FOLDER
"""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Annotated, NamedTuple

import jax
import numpy as np
import typer
import xarray as xr

from experiments import figures
from experiments.outcome import Outcome
from pause_jax import SimConfig, presets, sweep
from pause_jax.privacy import (
    Budget,
    DuchiL2,
    GaussianMechanism,
    Geometric,
    L1Laplace,
    Mechanism,
    NoPrivacy,
    PerCoordinateLaplace,
    PrivUnitG,
    Projected,
)

HERE = pathlib.Path(__file__).parent
SAMPLES = 67  # of each client on MNIST, as in the authors' runs with 2,000 samples and K = 30
NETWORKS = {"30/5": (30, 5), "300/15": (300, 15)}
# eps_bar of a client for ever. Laplace noise for whole updates shows little below 10^5.
EPSILONS = (20.0, 200.0, 2e3, 2e4)
LAPLACE_EPSILONS = (*EPSILONS, 2e5, 2e6)
# Each mechanism gets the best of three clips, chosen for it by its accuracy.
L2_CLIPS, L1_CLIPS, WIDTHS = (1e-3, 1e-2, 1e-1), (0.01, 0.3, 10.0), (3e-4, 3e-3, 3e-2)


class Point(NamedTuple):
    """A run's place in the tables: mechanism, its eps_bar in its own unit, and its clip."""

    mechanism: str
    epsilon: float
    clip: float


def setting(dataset: str, network: str, data_dir: str | None, rounds: int) -> SimConfig:
    """PAUSE with the authors' weights, i.i.d. data, their network (32, 16)."""
    num_clients, num_selected = NETWORKS[network]
    if dataset == "mnist":
        config = presets.mnist_small(data_dir=data_dir)
        config = config.override({"learning.data.num_train": SAMPLES * num_clients})
    else:
        config = presets.digits_small()
    return config.replace(
        num_clients=num_clients,
        num_selected=num_selected,
        num_rounds=rounds,
        eval_every=rounds,
        track_regret=False,
    )


def mechanisms(num_parameters: int) -> dict[Point, Mechanism]:
    """All runs; per_coordinate also at the whole-update epsilons of the others."""

    def budget(epsilon: float) -> Budget:
        return Geometric(total_epsilon=epsilon)

    points: dict[Point, Mechanism] = {Point("none", np.inf, 0.0): NoPrivacy()}
    coordinate = (*(e / num_parameters for e in EPSILONS), *EPSILONS)
    for e, width in itertools.product(coordinate, WIDTHS):
        mechanism = PerCoordinateLaplace(budget=budget(e), sensitivity=width)
        points[Point("per_coordinate", e, width)] = mechanism
    for e, clip in itertools.product(LAPLACE_EPSILONS, L1_CLIPS):
        points[Point("l1_vector", e, clip)] = L1Laplace(budget=budget(e), clip_norm=clip)
    for e, clip in itertools.product(EPSILONS, L2_CLIPS):
        for cls in (GaussianMechanism, PrivUnitG, DuchiL2):
            points[Point(cls.name, e, clip)] = cls(budget=budget(e), clip_norm=clip)
        inner = PrivUnitG(budget=budget(e), clip_norm=clip)
        points[Point("projected", e, clip)] = Projected(inner=inner)
    return points


def best(accuracy: dict[Point, np.ndarray]) -> dict[tuple[str, float], tuple[float, float, float]]:
    """Mean and sd over seeds at the clip with the best mean, for each (mechanism, epsilon)."""
    found: dict[tuple[str, float], tuple[float, float, float]] = {}
    for point, values in accuracy.items():
        mean, sd = float(values.mean()), float(values.std(ddof=min(1, values.size - 1)))
        name = (point.mechanism, point.epsilon)
        if name not in found or mean > found[name][0]:
            found[name] = mean, sd, point.clip
    return found


def play(config: SimConfig, seeds: int) -> tuple[int, dict[Point, np.ndarray]]:
    """d, and the accuracy in % after the last round for each point [seeds]; 0 if not finite."""
    keys = jax.random.split(jax.random.key(0), seeds)
    plain = sweep({"none": config.replace(privacy=NoPrivacy())}, keys)
    num_parameters = int(plain.num_parameters.item())
    accuracy = {Point("none", np.inf, 0.0): _end(plain)[0]}
    points = mechanisms(num_parameters)
    points.pop(Point("none", np.inf, 0.0))
    rows = _end(sweep([config.replace(privacy=m) for m in points.values()], keys))
    return num_parameters, accuracy | dict(zip(points, rows, strict=True))


def _end(result: xr.Dataset) -> np.ndarray:
    return np.nan_to_num(100 * result.test_accuracy.isel(eval_round=-1).values)


def tell(
    outcome: Outcome,
    num_parameters: int,
    found: dict[tuple[str, float], tuple[float, float, float]],
) -> None:
    """The two tables of a setting."""

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
    results: dict[str, tuple[int, dict[tuple[str, float], tuple[float, float, float]]]],
    out: pathlib.Path,
) -> None:
    """Accuracy against epsilon of the whole update (above) and of one coordinate (below)."""
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
    """Run, print and write the tables; exit status 1 if a check fails."""
    rules = json.loads((HERE / "expected.json").read_text())
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds, PAUSE, geometric budget, eta = 0.04")
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
