"""Export of recorded rounds to CSV files, TensorBoard or a custom logging service."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from pause_jax.base.registry import require
from pause_jax.base.spelling import file_name
from pause_jax.run.record.quantities import QUANTITIES

__all__ = ["rows"]

# Quantities left out of ``Row.values``, because a row implies them or stores them as ``seconds``.
_OF_ROW = ("played", "clock", "eval_clock")


class Row(NamedTuple):
    """Recorded values of one round of one run.

    Attributes:
      config, seed: label of the config and index of the seed.
      round: round number, starting at 1.
      seconds: simulated time at the end of the round, in seconds.
      values: finite recorded values, keyed by the name of the quantity.
    """

    config: str
    seed: int
    round: int
    seconds: float
    values: dict[str, float]


def quantities(result: xr.Dataset) -> list[str]:
    """Return the names of scalars recorded per round or evaluation, with custom quantities last."""
    scalars = [
        str(name)
        for name, values in result.data_vars.items()
        if values.dims in (("config", "seed", "round"), ("config", "seed", "eval_round"))
        and name not in _OF_ROW
    ]
    order = {name: place for place, name in enumerate(QUANTITIES)}
    return sorted(scalars, key=lambda name: order.get(name, len(order)))


def rows(result: xr.Dataset) -> Iterator[Row]:
    """Yield one row per played round of a ``sweep``, run by run.

    Args:
      result: data set from ``sweep``, with ``played`` and ``clock``.

    Yields:
      Rows of each run in the order of rounds. Only evaluated rounds have test metrics.
    """
    names = quantities(result)
    for config, seed in itertools.product(result.config.values, result.seed.values):
        run = result.sel(config=config, seed=seed)
        # Rounds without an evaluation have NaN in the columns of test metrics.
        columns = {name: run[name].to_series().astype(float) for name in ("clock", *names)}
        table = pd.DataFrame(columns)[run["played"].values]
        for number, values in zip(table.index, table.to_dict("records"), strict=True):
            seconds = values.pop("clock")
            finite = {str(name): value for name, value in values.items() if np.isfinite(value)}
            yield Row(str(config), int(seed), int(number), seconds, finite)


def write_csv(result: xr.Dataset, folder: pathlib.Path) -> pathlib.Path:
    """Write ``events.csv`` with one row per config, seed and played round; return its path."""
    path = folder / "events.csv"
    columns = ["config", "seed", "round", "seconds", *quantities(result)]
    lines = [row._asdict() | row.values for row in rows(result)]
    pd.DataFrame(lines, columns=columns).to_csv(path, index=False, float_format="%.7g")
    return path


def write_answers(result: xr.Dataset, folder: pathlib.Path) -> pathlib.Path:
    """Write ``answers.csv`` with one row per client answer; return its path.

    The rows of a run are sorted by ``step`` and then by ``finish``. ``start`` and ``finish`` are
    simulated seconds. ``version`` is the number of server steps before the client started.
    ``step`` is the server step that received the answer. Other simulators can replay the file. The
    file has no rows unless the sweep recorded ``answered`` (the default for overlapping rounds).
    """
    path = folder / "answers.csv"
    columns = ["config", "seed", "step", "client", "start", "finish", "version", "averaged"]
    tables = [pd.DataFrame(columns=columns)]
    runs = itertools.product(result.config.values, result.seed.values)
    for config, seed in runs if "answered" in result else ():
        run = result.sel(config=config, seed=seed).transpose("round", "slot", ...)
        finish = run["answered"].values.astype(float)
        step = np.broadcast_to(np.arange(1, len(finish) + 1)[:, None], finish.shape)
        table = pd.DataFrame(
            {
                "step": step.ravel(),
                "client": run["clients"].values.ravel(),
                "start": (finish - run["took"].values).ravel(),
                "finish": finish.ravel(),
                "version": (step - 1 - run["staleness"].values).ravel(),
                "averaged": run["in_time"].values.astype(int).ravel(),
            }
        ).assign(config=str(config), seed=int(seed))
        tables.append(table[table.client >= 0].sort_values(["step", "finish"])[columns])
    answers = pd.concat(tables[1:] or tables)
    answers.to_csv(path, index=False, float_format="%.9g")
    return path


def write_tensorboard(result: xr.Dataset, folder: pathlib.Path) -> pathlib.Path:
    """Write event files to ``tensorboard/``, one subfolder per run; return the path of the folder.

    Steps are round numbers. The wall time of an event is the simulated clock, so TensorBoard's
    ``Relative`` axis shows simulated hours. Requires the extra ``tensorboard``.
    """
    writers = require("tensorboardX", "tensorboard", "--log tensorboard")
    home = folder / "tensorboard"
    places = {str(name): place for place, name in enumerate(result.config.values)}
    for (config, seed), run in itertools.groupby(rows(result), lambda row: (row.config, row.seed)):
        name = f"{places[config]:02}-{file_name(config)}"
        with writers.SummaryWriter(str(home / name / f"seed-{seed}")) as writer:
            for row in run:
                for quantity, value in row.values.items():
                    writer.add_scalar(quantity, value, row.round, walltime=row.seconds)
    return home


# Writer for each value of ``--log``.
WRITERS: dict[str, Callable[[xr.Dataset, pathlib.Path], pathlib.Path]] = {
    "tensorboard": write_tensorboard,
    "csv": write_csv,
    "answers": write_answers,
}
