"""The command ``pause-jax tune``: the best numbers of a config, and whether they hold."""

from __future__ import annotations

import json
import pathlib
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from rich.console import Console

from pause_jax.analysis import csv_file, space, tuning
from pause_jax.analysis.space import Axis, Objective
from pause_jax.analysis.table import label, make_table, number
from pause_jax.analysis.tuning import Trial, Tuned
from pause_jax.base.compilation import use_cache
from pause_jax.base.struct import ConfigError
from pause_jax.cli import result_folder
from pause_jax.cli.execute import described, end
from pause_jax.cli.options import Base, Figures, Force, Name, Out, Resume, Seed, Source
from pause_jax.cli.result_folder import UNFINISHED
from pause_jax.cli.settings import about, base_config, load_files
from pause_jax.cli.stopping import stoppable
from pause_jax.config import config_file, validate
from pause_jax.sweeps.execute import SweepInterrupted

_FILES = ("best.toml", "trials.csv", "response.png", result_folder.RUN)


class _Search(NamedTuple):
    """How to search: the options of those names."""

    budget: Annotated[int, typer.Option(help="Configs to try.")] = 64
    seeds: Annotated[int, typer.Option(help="Runs of each.")] = 3
    method: Annotated[
        str, typer.Option(help=f"How configs are proposed: {', '.join(tuning.METHODS)}.")
    ] = "tpe"
    width: Annotated[int, typer.Option(help="Configs side by side.")] = 8


class _Place(NamedTuple):
    """Where the result goes: the options of those names."""

    name: Name = None
    out: Out = pathlib.Path("results")
    force: Force = False
    resume: Resume = False
    store: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="FOLDER", help="Share the search: start the same command several times."
        ),
    ] = None


_SEARCH, _SOURCE, _PLACE = _Search(), Source(), _Place()


def tune(
    base: Base,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=LOW..HIGH",
            help="A number and its range, e.g. policy.index.speed_weight=0.5..4, or by factors "
            "reward.gamma=log:0.1..100; repeat it for several.",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(help="'seconds to 80 %' (any target), accuracy, loss, regret or seconds."),
    ] = "seconds to 80 %",
    search: _Search = _SEARCH,
    seed: Seed = 0,
    source: Source = _SOURCE,
    place: _Place = _PLACE,
    figures: Figures = True,
) -> None:
    """Search for the numbers of a config that are best, in one compiled program.

    The best of the search run again with fresh seeds, beside the initial config. Processes that
    are given the same --store search together.
    Writes best.toml, trials.csv and response.png.
    """
    load_files(source.load)
    config = base_config(base, source)
    with about(base):
        validate(config)
    axes = [space.axis_of(text, config) for text in vary or []]
    aim = space.objective_of(objective)
    about_run = described(seed)
    folder = _reserved(place, f"tune-{pathlib.Path(base).stem}", about_run)
    kept = folder / UNFINISHED
    if place.store is None:
        kept.mkdir(exist_ok=True)
        (kept / result_folder.RUN).write_text(json.dumps(about_run))
    try:
        use_cache()
        key, how = jax.random.key(seed), tuning.Search(**search._asdict())
        with stoppable():
            found = tuning.tune(config, axes, aim, key, search=how, store=place.store or kept)
        _write(found, axes, aim, folder, figures=figures)
        _print(found, axes, aim)
        result_folder.finish(folder, about_run)
        if place.store is None:
            result_folder.discard_unfinished(folder)
        Console().print(f"Written to {folder}/")
    except SweepInterrupted as error:
        how_on = "" if place.store is not None else " with --resume"
        end(error, f"The same command{how_on} goes on.")
    finally:
        if kept.is_dir() and not any(path.is_dir() for path in kept.iterdir()):
            result_folder.discard_unfinished(folder)
        result_folder.give_back(folder)


def _reserved(place: _Place, default: str, about_run: dict[str, Any]) -> pathlib.Path:
    """The folder of the result: a new one, or the unfinished one of this command."""
    explicit = place.name is not None
    name = default if place.name is None else place.name
    folder = _to_go_on_with(place.out, name, explicit, about_run) if place.resume else None
    if folder is None:
        folder = result_folder.reserve(
            place.out, name, explicit=explicit, force=place.force, writes=_FILES
        )
    return folder


def _write(
    found: Tuned, axes: list[Axis], aim: Objective, folder: pathlib.Path, *, figures: bool
) -> None:
    result_folder.begin(folder)
    best, trials, picture, _ = (result_folder.claimed(folder, each) for each in _FILES)
    best.write_text(config_file.dumps(found.best))
    _save(found, trials)
    if figures:
        _draw(found, axes, aim, picture)


def _to_go_on_with(
    out: pathlib.Path, name: str, explicit: bool, about: dict[str, Any]
) -> pathlib.Path | None:
    """The folder of this very command that is unfinished; None if nothing is.

    Raises:
      ConfigError: if there are unfinished ones of other commands alone.
    """
    others = []
    for folder in result_folder.existing(out, name, explicit=explicit):
        if (folder / UNFINISHED).is_dir():
            command = result_folder.about(folder / UNFINISHED).get("command")
            if command == about["command"]:
                result_folder.check_own(folder, _FILES)
                return folder
            others.append(f"{folder} was started by: {command}")
    if others:
        raise ConfigError(f"--resume: {others[0]}. Give that command, or leave out --resume.")
    return None


def _print(found: Tuned, axes: list[Axis], objective: Objective) -> None:
    console = Console()
    rows = []
    initial = found.finalists[-1][1]
    for place, (seen, fresh) in enumerate(found.finalists):
        last = place == len(found.finalists) - 1
        title = "initial" if last else f"{place + 1}"
        values = [f"{fresh.values[axis.path]:.4g}" for axis in axes]
        gain = fresh._replace(scores=fresh.scores - initial.scores)
        rows.append(
            [
                title + " *" * (place == found.chosen),
                *values,
                "-" if last else _pm(seen, objective),
                _pm(fresh, objective),
                "-" if last or not gain.is_complete else _pm(gain, objective),
            ]
        )
    headings = [axis.path.rpartition(".")[2] for axis in axes]
    columns = [label("config"), *map(number, [*headings, "in the search", "fresh seeds", "change"])]
    fresh = found.finalists[found.chosen][1]
    partial = any(not trial.is_complete for pair in found.finalists for trial in pair)
    console.print(
        make_table(
            columns,
            rows,
            title=f"{objective.text}, mean ± standard error",
            caption=f"*: chosen, the best of these with {fresh.scores.size} fresh seeds. "
            "change: against the initial config, over the same seeds."
            + " (n/N): n of N seeds have a value; configs with fewer rank below."
            * partial,
        )
    )
    seen, again = found.finalists[0]
    curse = f" ({found.curse:+.2g})" if seen.is_complete and again.is_complete else ""
    console.print(
        f"- Of {len(found.trials)} configs the best promised {_mean_of(seen, objective)} and gave "
        f"{_mean_of(again, objective)}{curse} with seeds that the search had not seen: trust the "
        f"fresh figure; it is still the best of {len(found.finalists)}.",
        highlight=False,
    )
    if not fresh.scored.size:
        console.print("- No finalist has a value: the star marks the one that came nearest.")
    if found.chosen == len(found.finalists) - 1:
        console.print("- No config was better than the initial one, which is best.toml.")


def _pm(trial: Trial, objective: Objective) -> str:
    error = "" if np.isnan(trial.error) else f"±{trial.error:.2g}"
    return _mean_of(trial, objective, error)


def _mean_of(trial: Trial, objective: Objective, error: str = "") -> str:
    """A mean, with the seeds that have a value if not all have one."""
    value = f"{trial.mean:.4g}{error}" if trial.scored.size else objective.missing
    return value + f" ({trial.scored.size}/{trial.scores.size})" * (not trial.is_complete)


def _save(found: Tuned, path: pathlib.Path) -> None:
    headings = [*found.trials[0].values, "seeds", "scored", "mean", "error"]
    rows = (
        [*each.values.values(), each.scores.size, each.scored.size, each.mean, each.error]
        for each in found.trials
    )
    csv_file.write(path, [headings, *rows])


def _draw(found: Tuned, axes: list[Axis], objective: Objective, path: pathlib.Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 3.2 * len(axes), 3.4), layout="constrained")
    panels: Any = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        whole = [trial for trial in found.trials if trial.is_complete]
        x = [trial.values[axis.path] for trial in whole]
        y, error = [trial.mean for trial in whole], [trial.error for trial in whole]
        panel.errorbar(x, y, np.nan_to_num(error), fmt="o", ms=3, lw=0.8, color="#4477AA")
        seen, fresh = found.finalists[found.chosen]
        panel.plot(seen.values[axis.path], fresh.mean, "*", ms=13, color="#EE6677", label="chosen")
        initial = found.finalists[-1][1]
        panel.plot(
            initial.values[axis.path], initial.mean, "s", ms=6, color="#228833", label="initial"
        )
        panel.set(xlabel=axis.path, xscale="log" if axis.log else "linear")
    panels[0].set_ylabel(objective.text)
    if left := sum(not trial.is_complete for trial in found.trials):
        figure.suptitle(f"{left} of {len(found.trials)} trials: {objective.missing} in some seed")
    panels[0].legend(fontsize="small", title="with fresh seeds")
    figure.savefig(path, dpi=150)
