"""Result folder, which is created before the runs, filled after them, and reused on resume."""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from pause_jax.base.archive import decoded
from pause_jax.base.source_file import written
from pause_jax.base.spelling import file_name, shown
from pause_jax.base.struct import ConfigError

if TYPE_CHECKING:
    import xarray as xr

DATA, RUN, UNFINISHED = "data.nc", "run.json", "unfinished"
SUMMARY, LEDGER, REPORT = "summary.csv", "ledger.csv", "report.html"
# Maximum length of a result name, in bytes.
_LONGEST_NAME = 200


class Run(TypedDict, total=False):
    """Contents of ``run.json``, which records how the result was produced."""

    command: str
    seed: int
    seeds: int
    made_by: str
    interrupted: str
    versions: dict[str, str]


def check_name(name: str) -> None:
    """Raise ConfigError unless a result name is a valid folder name."""
    plain = name not in ("", ".", "..") and name.isprintable() and not set(name) & set("/\\:")
    if not plain or len(name.encode()) > _LONGEST_NAME:
        raise ConfigError(
            f"--name {shown(name)}: must be a folder name of at most {_LONGEST_NAME} bytes, "
            "without / \\ : or line breaks. Choose another --name."
        )


def reserve(root: pathlib.Path, name: str, *, explicit: bool) -> pathlib.Path:
    """Create the result folder before the run to detect errors early.

    If a default name (``explicit`` is False) is already in use, a number is appended.

    Raises:
      ConfigError: if an explicit name is already in use, or the folder cannot be created.
    """
    check_name(name)
    try:
        root.mkdir(parents=True, exist_ok=True)
        for each in [name] if explicit else _numbered(name):
            with contextlib.suppress(FileExistsError):
                (root / each).mkdir()
                return root / each
    except OSError as error:
        where = error.filename or root / name
        raise ConfigError(f"{where}: cannot be created ({error.strerror}).") from None
    resumed = (root / name / UNFINISHED).is_dir()
    raise ConfigError(
        f"{root / name} already exists, and results are not overwritten. "
        + ("Use --resume to continue the unfinished run. " if resumed else "")
        + "Choose another --name, or remove the folder."
    )


def _numbered(name: str) -> Iterator[str]:
    """Yield NAME, NAME-2, NAME-3, ..."""
    yield name
    for number in itertools.count(2):
        yield f"{name}-{number}"


def check_links(folder: pathlib.Path) -> None:
    """Raise ConfigError if a result folder is or contains a link, which could point anywhere."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            raise ConfigError(
                f"{path}: must be a folder or a file, not a link. Remove the link, or choose "
                "another --name."
            )


def write_run(folder: pathlib.Path, about: Mapping[str, Any]) -> None:
    """Write ``run.json``."""
    with written(folder / RUN) as file:
        file.write(f"{json.dumps(about, indent=2)}\n".encode())


def existing(root: pathlib.Path, name: str, *, explicit: bool) -> list[pathlib.Path]:
    """Return the existing folders for a result name, highest number first."""
    check_name(name)
    if explicit:
        return [root / name] if (root / name).is_dir() else []
    pattern = re.compile(rf"{re.escape(name)}(?:-(\d+))?")
    numbered = {
        int(match[1] or 1): folder
        for folder in root.glob("*/")
        if (match := pattern.fullmatch(folder.name))
    }
    return [numbered[number] for number in sorted(numbered, reverse=True)]


def give_back(folder: pathlib.Path) -> None:
    """Remove a reserved folder if it is empty."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def save(result: xr.Dataset, folder: pathlib.Path, about: Mapping[str, Any]) -> None:
    """Write ``data.nc``, ``configs/<config>.toml`` and ``about`` (as ``run.json``)."""
    (folder / "configs").mkdir(parents=True, exist_ok=True)
    # Build the file in memory, because HDF5 crashes the process when the disk is full.
    content = result.to_netcdf(engine="h5netcdf")
    with written(folder / DATA) as file:
        file.write(content)
    stems: set[str] = set()
    for name in result.config.values:
        # Two labels may map to the same file name.
        stem = next(each for each in _numbered(file_name(str(name))) if each not in stems)
        stems.add(stem)
        text = result.config_toml.sel(config=name).item()
        (folder / "configs" / f"{stem}.toml").write_text(text)
    write_run(folder, about)


def about(folder: pathlib.Path) -> Run:
    """Return the contents of ``run.json``, or an empty mapping if the file is missing.

    Raises:
      ConfigError: if the file is damaged.
    """
    try:
        content = (folder / RUN).read_bytes()
    except OSError:
        return {}
    advice = "The file is not overwritten. Move the file, or choose another --name."
    return decoded(folder / RUN, content, Run, advice)
