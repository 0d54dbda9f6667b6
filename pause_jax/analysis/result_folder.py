"""The folder of a result: reserved before the run, filled after it."""

from __future__ import annotations

import contextlib
import json
import pathlib
import platform
from importlib import metadata

import jax
import xarray as xr

from pause_jax.struct import ConfigError

_PACKAGES = ("pause_jax", "jax", "jaxlib", "flax", "optax", "numpy", "xarray")


def reserve(root: pathlib.Path, name: str, *, explicit: bool, force: bool) -> pathlib.Path:
    """The folder for a result, decided before the run so that nothing is lost after it.

    Args:
      root: folder of all results.
      name: of this one.
      explicit: whether the user gave the name; otherwise a number is added to a taken one.
      force: whether a taken folder may be written to.

    Returns:
      The folder, created.

    Raises:
      ConfigError: if an explicit name is taken and ``force`` is not set, or it cannot be made.
    """
    folder = root / name
    if folder.exists() and not force:
        if explicit:
            raise ConfigError(
                f"{folder} exists: results are not overwritten. Choose another --name, or --force."
            )
        folder = next(
            path for n in range(2, 100_000) if not (path := root / f"{name}-{n}").exists()
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror}).") from None
    return folder


def give_back(folder: pathlib.Path) -> None:
    """Remove a reserved folder into which nothing was written."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def save(result: xr.Dataset, folder: pathlib.Path) -> None:
    """Write ``data.nc``, ``configs/<config>.toml`` and ``versions.json``."""
    save_data(result, folder)
    configs = folder / "configs"
    configs.mkdir(exist_ok=True)
    for name in result.config.values:
        text = result.config_toml.sel(config=name).item()
        (configs / f"{_file_name(name)}.toml").write_text(text)
    (folder / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n")


def save_data(result: xr.Dataset, folder: pathlib.Path) -> None:
    """Write ``data.nc``. A file of that name is whole, whenever the process may end."""
    result.to_netcdf(folder / "unfinished.nc")
    (folder / "unfinished.nc").replace(folder / "data.nc")


def versions() -> dict[str, str]:
    """Versions of what a result depends on, and the devices."""
    return {
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in _PACKAGES},
        "devices": ", ".join(str(device) for device in jax.devices()),
    }


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in label)
