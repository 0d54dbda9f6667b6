"""The ``pause-jax report`` command, which writes an HTML page from a result's data."""

from __future__ import annotations

import os
import pathlib
from typing import Annotated

import h5py
import typer
import xarray as xr

from pause_jax.analysis import report as reports
from pause_jax.base.source_file import os_errors_as
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError, prefixed
from pause_jax.cli import result_folder
from pause_jax.cli.options import Load, Target


def report(
    folder: Annotated[pathlib.Path, typer.Argument(help="Result folder that contains data.nc.")],
    target: Target = 0.8,
    against: Annotated[
        str | None,
        typer.Option(help="Reference config of the comparison (default: the best)."),
    ] = None,
    load: Load = None,
) -> None:
    """Write a self-contained report, FOLDER/report.html, from FOLDER/data.nc."""
    data = folder / "data.nc"
    if not os.path.isfile(data):
        raise ConfigError(f"{data}: does not exist. Pass a result folder, e.g. results/NAME.")
    try:
        _check_whole(data)
        result = xr.load_dataset(data, engine="h5netcdf")
    except Exception as error:  # h5py and xarray raise many types of errors
        raise ConfigError(f"{data}: cannot be read as NetCDF ({error}).") from None
    result_folder.check_links(folder)
    path = folder / result_folder.REPORT
    with os_errors_as(f"{path}: cannot be written"), prefixed(data):
        reports.write(result, path, target, against=against, title=folder.resolve().name)
    typer.echo(f"Written to {path}")


def _check_whole(path: pathlib.Path) -> None:
    """Raise ValueError if a variable links to another file, because that file could be private."""
    with h5py.File(path) as file:
        for name in file:
            # Inspect the link first, because following it may open a pipe.
            link = file.get(name, getclass=True, getlink=True)
            far = ("external", "is_virtual")
            if link is not h5py.HardLink or any(getattr(file[name], each, 0) for each in far):
                raise ValueError(f"{shown(name)} is in another file, but must be in this one")


def write_beside(result: xr.Dataset, folder: pathlib.Path, target: float) -> str:
    """Write the report of a new result, and return a message with its path or the error."""
    try:
        path = folder / result_folder.REPORT
        reports.write(result, path, target, title=folder.resolve().name)
    except ConfigError as error:
        return f"Report not written: {error}"
    return f"Report: {path}"
