"""The folder of a result: reserved before the run, filled after it, found again to go on."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import xarray as xr

from pause_jax.engine import provenance
from pause_jax.engine.store import discard_store
from pause_jax.struct import ConfigError

DATA, RUN, UNFINISHED = "data.nc", "run.json", "unfinished"
# What a result consists of, beside its data.
_FOLDERS = ("configs", "figures")


def reserve(root: pathlib.Path, name: str, *, explicit: bool, force: bool) -> pathlib.Path:
    """The folder for a result, decided before the run so that nothing is lost after it.

    Args:
      root: folder of all results.
      name: of this one.
      explicit: whether the user gave the name; otherwise a number is added to a taken one.
      force: whether a taken folder may be written to.

    Returns:
      The folder, created, and by no other process.

    Raises:
      ConfigError: if an explicit name is taken and ``force`` is not set, or it cannot be made.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        for folder in _named(root, name):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
            if force:
                return _taken_over(folder)
            if explicit:
                goes_on = (folder / UNFINISHED).is_dir()
                raise ConfigError(
                    f"{folder} exists: results are not overwritten. "
                    + ("It is unfinished: --resume goes on with it. " if goes_on else "")
                    + "Choose another --name, or --force."
                )
    except OSError as error:
        where = error.filename or root / name
        raise ConfigError(f"{where}: cannot be created ({error.strerror}).") from None
    raise ConfigError(f"{root / name}: there are too many results of that name. Give a --name.")


def _named(root: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
    yield root / name
    for number in range(2, 100_000):
        yield root / f"{name}-{number}"


def _taken_over(folder: pathlib.Path) -> pathlib.Path:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: must be a folder. Choose another --name.")
    if (folder / DATA).is_dir():
        raise ConfigError(f"{folder / DATA} is a folder: a file must go there. Remove it.")
    discard_store(folder / UNFINISHED)
    return folder


def existing(root: pathlib.Path, name: str, *, explicit: bool) -> list[pathlib.Path]:
    """The folders that results of a name have, the last one first."""
    if explicit:
        return [root / name] if (root / name).is_dir() else []
    number = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    found = []
    if root.is_dir():
        for folder in root.iterdir():
            match = number.fullmatch(folder.name)
            if match and folder.is_dir():
                found.append((int(match[1] or 1), folder))
    return [folder for _, folder in sorted(found, reverse=True)]


def give_back(folder: pathlib.Path) -> None:
    """Remove a reserved folder into which nothing was written."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def save(result: xr.Dataset, folder: pathlib.Path, about: Mapping[str, Any]) -> None:
    """Write ``data.nc``, ``configs/<config>.toml``, ``run.json`` and ``versions.json``; what an
    earlier result left in their places is gone.

    Args:
      result: of a sweep.
      folder: made again if somebody has removed it.
      about: what ``run.json`` says.

    Raises:
      OSError: if something cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_data(result, folder)
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    configs = folder / "configs"
    configs.mkdir()
    for name in result.config.values:
        text = result.config_toml.sel(config=name).item()
        (configs / f"{_file_name(name)}.toml").write_text(text)
    (folder / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n")
    (folder / RUN).write_text(json.dumps(about, indent=2) + "\n")


def save_data(result: xr.Dataset, folder: pathlib.Path) -> None:
    """Write ``data.nc``. A file of that name is whole, whenever the process may end.

    Raises:
      OSError: if it cannot be written.
    """
    # By way of memory: HDF5 takes the process down with it when the disk is full.
    content = result.to_netcdf(engine="h5netcdf")
    beside = folder / f".{DATA}.{os.getpid()}"
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(folder / DATA)
    finally:
        beside.unlink(missing_ok=True)


def about(folder: pathlib.Path) -> dict[str, Any]:
    """What ``run.json`` says; nothing if there is none, or it is damaged."""
    try:
        table = json.loads((folder / RUN).read_text())
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def versions() -> dict[str, str]:
    """Versions of what a result depends on, and the devices."""
    return {
        "python": platform.python_version(),
        **provenance.versions(),
        "xarray": xr.__version__,
        "devices": ", ".join(str(device) for device in jax.devices()),
    }


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in label)
