"""The command ``pause-jax tune``: the best numbers of a config, and whether they hold."""

from __future__ import annotations

import pathlib
from typing import Annotated, NamedTuple

import jax
import typer
from rich.console import Console

from pause_jax import tuning
from pause_jax.analysis.table import label, make_table, number
from pause_jax.base.compilation import use_cache
from pause_jax.base.struct import ConfigError
from pause_jax.cli import result_folder
from pause_jax.cli.execute import described, end
from pause_jax.cli.options import Base, Force, Name, Out, Seed, Source
from pause_jax.cli.output import stoppable
from pause_jax.cli.settings import about, base_config, load_files
from pause_jax.config import config_file, validate
from pause_jax.sweeps.execute import SweepInterrupted
from pause_jax.tuning import Objective, Tuned

_FILES = ("best.toml", "trials.csv", result_folder.RUN)


class _Search(NamedTuple):
    budget: Annotated[int, typer.Option(min=1, help="Configs to try.")] = 64
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each config.")] = 3
    width: Annotated[int, typer.Option(min=1, help="Configs proposed and run together.")] = 8
    sampler: Annotated[
        str | None, typer.Option(help="Class of optuna.samplers (default: a TPESampler).")
    ] = None
    storage: Annotated[
        str | None,
        typer.Option(help="File or URL of Optuna's storage, to resume and to share the search."),
    ] = None


class _Place(NamedTuple):
    name: Name = None
    out: Out = pathlib.Path("results")
    force: Force = False


_SOURCE, _SEARCH, _PLACE = Source(), _Search(), _Place()


def tune(
    base: Base,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="PATH=LOW..HIGH",
            help="Range of a number (by factors: PATH=log:LOW..HIGH), or values PATH=A,B; repeat "
            "it for several fields.",
        ),
    ],
    objective: Annotated[
        str,
        typer.Option(help="'seconds to 80 %' (any target), accuracy, loss, regret or seconds."),
    ] = "seconds to 80 %",
    search: _Search = _SEARCH,
    seed: Seed = 0,
    source: Source = _SOURCE,
    place: _Place = _PLACE,
) -> None:
    """Search for the numbers of a config that are best, in one compiled program.

    The best trials run again with fresh seeds, next to the initial config. The same command with
    the same --storage resumes the search, or shares it with other processes.
    Writes best.toml and trials.csv.
    """
    load_files(source.load)
    config = base_config(base, source)
    with about(base):
        validate(config)
    axes = dict(tuning.axis_of(text, config) for text in vary)
    if len(axes) < len(vary):
        raise ConfigError("--vary: must name each field once.")
    aim = tuning.objective_of(objective)
    key = jax.random.key(seed)
    name = f"tune-{pathlib.Path(base).stem}" if place.name is None else place.name
    folder = result_folder.reserve(
        place.out, name, explicit=place.name is not None, force=place.force, writes=_FILES
    )
    try:
        use_cache()
        with stoppable():
            found = tuning.tune(config, axes, aim, key, **search._asdict())
            result_folder.begin(folder)
            best, trials = (result_folder.claimed(folder, file) for file in _FILES[:2])
            best.write_text(config_file.dumps(found.best))
            found.trials.drop(columns="badness").to_csv(trials, index=False, na_rep="nan")
            _print(found, aim)
            result_folder.finish(folder, described(seed))
            Console().print(f"Written to {folder}/")
    except SweepInterrupted as error:
        end(error, "With --storage the same command resumes." if search.storage is None else "")
    finally:
        result_folder.give_back(folder)


def _print(found: Tuned, objective: Objective) -> None:
    finalists = found.finalists.drop(columns=["badness", "seeds"])
    names = [*map(str, range(1, len(finalists))), "initial"]
    names[found.chosen] += " *"
    rows = [
        [name, *(value if isinstance(value, str) else f"{value:.4g}" for value in row)]
        for name, row in zip(names, finalists.to_numpy().tolist(), strict=True)
    ]
    headings = [number(path.rpartition(".")[2].replace("_", "\n")) for path in finalists]
    caption = (
        "*: best.toml, the best mean with fresh seeds. scored: seeds with a value, of "
        f"{found.finalists.seeds[0]}; configs with fewer rank below. change: against the initial "
        f"config, over the same seeds. searched: mean in the search, where the best of "
        f"{len(found.trials)} configs is too good to be true."
    )
    Console().print(
        make_table([label("config"), *headings], rows, title=objective.text, caption=caption)
    )
