"""The ``pause-jax tune`` command, which searches for the best values of config fields."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import zlib
from typing import Annotated

import jax
import typer
from rich.console import Console

from pause_jax import tuning
from pause_jax.analysis.table import label, make_table, number
from pause_jax.base.compilation import use_cache
from pause_jax.base.struct import ConfigError
from pause_jax.cli import result_folder
from pause_jax.cli.execute import described, end
from pause_jax.cli.options import Base, Output, Source, option
from pause_jax.cli.output import stoppable
from pause_jax.cli.settings import valid_config
from pause_jax.config import config_file
from pause_jax.sweeps.estimate import estimate
from pause_jax.sweeps.execute import SweepInterrupted, planned
from pause_jax.tuning import Objective, Tuned


@dataclasses.dataclass(frozen=True)
class Search(Output):
    """Command-line options for a search."""

    budget: int = option(64, "Number of configs to try.", min=1)
    seeds: int = option(3, "Number of independent runs per config.", min=1)
    width: int = option(8, "Number of configs per generation.", min=1)
    sampler: str | None = option(None, f"Optuna sampler: {', '.join(tuning.SAMPLERS)}.")
    storage: str | None = option(
        None, "File or URL of Optuna's storage (default: in the result folder)."
    )


def tune(
    base: Base,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="PATH=LOW..HIGH",
            help="Field and its range (PATH=log:LOW..HIGH for a log scale) or values (PATH=A,B). "
            "Repeat --vary for several fields.",
        ),
    ],
    *,
    objective: Annotated[
        str,
        typer.Option(help="Objective: 'seconds to N %', accuracy, loss, regret or seconds."),
    ] = "seconds to 80 %",
    search: Search,
    source: Source,
) -> None:
    """Search for the field values that optimize an objective.

    Values of a traced number, such as reward.gamma, share one compilation. Other fields may need
    one compilation per value. The best trials and the initial config are rerun with fresh seeds.
    Processes with the same --storage share the search. The command writes best.toml and trials.csv.
    """
    config = valid_config(base, source)
    axes = dict(tuning.axis_of(text, config) for text in vary)
    if len(axes) < len(vary):
        raise ConfigError("--vary: must name each field only once.")
    aim = tuning.objective_of(objective)
    key = jax.random.key(search.seed)
    use_cache()
    if search.dry_run:
        generation = {f"{base} {i}": config for i in range(search.width)}
        plan, _ = planned(generation, jax.random.split(key, search.seeds), None)
        # The final comparison needs about as many runs as a generation.
        times = math.ceil(search.budget / search.width) + 1
        values = math.prod(tuning.programs(axes, config).values())
        typer.echo(estimate(plan, times=times, values=values))
        return
    name = f"tune-{pathlib.Path(base).stem}" if search.name is None else search.name
    explicit = search.name is not None
    wanted = config_file.dumps(config), vary, aim.text, search.seeds, search.seed
    journal = f"search-{zlib.crc32(repr(wanted).encode()):08x}.log"
    known = result_folder.existing(search.out, name, explicit=explicit) if search.resume else []
    folder = next((each for each in known if (each / journal).is_file()), None)
    if folder is None:
        folder = result_folder.reserve(search.out, name, explicit=explicit)
    else:
        result_folder.check_links(folder)
    options = {each: getattr(search, each) for each in ("budget", "seeds", "width", "sampler")}
    storage = search.storage or str(folder / journal)
    try:
        with stoppable():
            found = tuning.tune(config, axes, aim, key, storage=storage, **options)
            (folder / journal).touch()
            (folder / "best.toml").write_text(config_file.dumps(found.best))
            trials = found.trials.drop(columns="badness")
            trials.to_csv(folder / "trials.csv", index=False, na_rep="nan")
            _print(found, aim)
            result_folder.write_run(folder, described(search.seed))
            Console().print(f"Written to {folder}/")
    except SweepInterrupted as error:
        end(error, "Run the same command with --resume to continue.")
    finally:
        result_folder.give_back(folder)


def _print(found: Tuned, objective: Objective) -> None:
    finalists = found.finalists.drop(columns=["badness", "seeds"])
    names = [*map(str, range(1, len(finalists))), "initial"]
    names[found.chosen] += " *"
    rows = [
        [name, *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row)]
        for name, row in zip(names, finalists.to_numpy().tolist(), strict=True)
    ]
    headings = [number(path.rpartition(".")[2].replace("_", "\n")) for path in finalists]
    caption = (
        "*: best mean with fresh seeds, written to best.toml. scored: how many of the "
        f"{found.finalists.seeds[0]} seeds have a score. Configs with fewer scores rank lower. "
        "change: difference from the initial config with the same seeds. searched: mean in the "
        f"search (optimistic for the best of {len(found.trials)} configs)."
    )
    columns = [label("config"), *headings]
    Console().print(make_table(columns, rows, title=objective.text, caption=caption))
