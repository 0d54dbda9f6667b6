"""Files and tables that a command writes after its runs."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pause_jax.analysis import ledger_table, summary
from pause_jax.analysis.comparison import compare
from pause_jax.analysis.ledger import Ledger
from pause_jax.cli import result_folder
from pause_jax.cli.options import Request

if TYPE_CHECKING:
    import xarray as xr


def publish(
    result: xr.Dataset, folder: pathlib.Path, about: Mapping[str, Any], request: Request
) -> OSError | None:
    """Write the result files, starting with the data, and print the tables.

    If a file cannot be written, still print the tables, and return the error.
    """
    target = request.target
    rows = summary.summary(result, target)
    books = ledger_table.ledgers(result)
    failure = None
    message = ""
    try:
        result_folder.save(result, folder, about)
        summary.save(rows, folder / result_folder.SUMMARY)
        ledger_table.save(books, folder / result_folder.LEDGER)
        if request.figures:
            from pause_jax.analysis.plotting import save_figures

            save_figures(result, folder / "figures", target)
        if request.report:
            from pause_jax.cli.report import write_beside

            message = write_beside(result, folder, target)
    except OSError as error:
        failure = error
    # Print last, because a closed pipe ends the program.
    _print(result, rows, books, target)
    if message:
        Console().print(message, highlight=False, markup=False)
    return failure


def show_again(folder: pathlib.Path, target: float) -> None:
    """Print the tables of a finished result."""
    import xarray as xr

    with xr.open_dataset(folder / result_folder.DATA, engine="h5netcdf") as file:
        result = file.load()
    _print(result, summary.summary(result, target), ledger_table.ledgers(result), target)


def _print(
    result: xr.Dataset, rows: list[dict[str, Any]], books: dict[str, Ledger], target: float
) -> None:
    console = Console()
    sizes = result.data_size.where(result.data_size >= 0)
    if sizes.max() > 1:  # if learning is None, each client has one sample
        low, high = int(sizes.min()), int(sizes.max())
        console.print(f"{result.sizes['client']} clients, {low} to {high} samples each")
    if len(rows) > 1:
        console.print(compare(result, target).text + "\n", highlight=False, markup=False)
    console.print(summary.table(rows, target))
    console.print(ledger_table.table(books))
    for sentence in (*ledger_table.notes(books), *summary.notes(result)):
        console.print(f"- {sentence}", highlight=False, markup=False)
