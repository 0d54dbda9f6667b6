"""Result folder, which is reserved before the runs, written after them and reused to resume."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from pause_jax.base.archive import decoded
from pause_jax.base.source_file import written
from pause_jax.base.spelling import file_name, shown
from pause_jax.base.struct import ConfigError
from pause_jax.sweeps.store import discard_store

if TYPE_CHECKING:
    import xarray as xr

DATA, RUN, UNFINISHED = "data.nc", "run.json", "unfinished"
SUMMARY, LEDGER, REPORT = "summary.csv", "ledger.csv", "report.html"
# Files and subfolders that a command may write to its result folder.
FILES = (
    *(DATA, RUN, SUMMARY, LEDGER, REPORT),
    *("events.csv", "answers.csv", "best.toml", "trials.csv"),
)
_FOLDERS = ("configs", "figures", "tensorboard")
# Maximum length of a result's name, in bytes.
_LONGEST_NAME = 200


class Run(TypedDict, total=False):
    """Content of ``run.json``, including a result's command, seeds and list of written files."""

    command: str
    seed: int
    seeds: int
    made_by: str
    interrupted: str
    versions: dict[str, str]
    files: list[str]


def check_name(name: str) -> None:
    """Raise ConfigError unless a result's name is a valid name of a folder inside ``--out``."""
    plain = name not in ("", ".", "..") and name.isprintable() and not set(name) & set("/\\:")
    if not plain or len(name.encode()) > _LONGEST_NAME:
        raise ConfigError(
            f"--name {shown(name)}: must be the name of a folder inside --out, with at most "
            f"{_LONGEST_NAME} bytes and without / \\ : or line breaks. Choose another --name."
        )


def reserve(root: pathlib.Path, name: str, *, explicit: bool, force: bool) -> pathlib.Path:
    """Create the folder of a result before the run, to detect errors early.

    Args:
      root: folder of all results.
      name: name of the result.
      explicit: whether the user chose the name. Otherwise a taken name gets a number.
      force: whether to write into an existing folder.

    Raises:
      ConfigError: if an explicit name is taken without ``force``, the folder cannot be created, or
        a file that this library did not write would be overwritten.
    """
    check_name(name)
    try:
        root.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            number += 1
            folder = root / (name if number == 1 else f"{name}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
            if force:
                check_own(folder)
                discard_store(folder / UNFINISHED)
                return folder
            if explicit:
                resumed = (folder / UNFINISHED).is_dir()
                raise ConfigError(
                    f"{folder} already exists, and results are not overwritten. "
                    + ("Use --resume to continue the unfinished run. " if resumed else "")
                    + "Choose another --name, or use --force."
                )
    except OSError as error:
        where = error.filename or root / name
        raise ConfigError(f"{where}: cannot be created ({error.strerror}).") from None


def check_own(folder: pathlib.Path, writes: Collection[str] = FILES) -> None:
    """Raise ConfigError if a file in ``writes`` or a subfolder may belong to another program."""
    for path in (folder, *(folder / name for name in (*_FOLDERS, UNFINISHED))):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise ConfigError(
                f"{path}: must be a folder, not a link or a file. Remove it, or choose another "
                "--name."
            )
    ours = manifest(folder)
    for name in writes:
        if (folder / name).is_dir():
            raise ConfigError(f"{folder / name} is a folder, but must be a file. Move the folder.")
        if os.path.lexists(folder / name) and name not in ours:
            raise ConfigError(
                f"{folder / name} is not listed in {RUN}, so it may be your own file and is not "
                "overwritten. Move the file, or choose another --name."
            )


def manifest(folder: pathlib.Path) -> set[str]:
    """Return the relative paths of the files that this library wrote, as listed in ``run.json``."""
    return {name for name in about(folder).get("files", []) if _is_inside(folder, name)}


def _is_inside(folder: pathlib.Path, name: str) -> bool:
    """Return whether a listed name is a relative file path inside the folder, without links."""
    path = pathlib.PurePosixPath(name)
    return (
        not path.is_absolute()
        and ".." not in path.parts
        and "\0" not in name
        and not (folder / path).is_dir()
        and not any((folder / part).is_symlink() for part in (path, *path.parents))
    )


def claim(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Add files to the list in ``run.json``."""
    _write_run(folder, {**about(folder), "files": sorted({*manifest(folder), RUN, *names})})


def claimed(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Add a file to the list in ``run.json``, and return its path."""
    claim(folder, [name])
    return folder / name


def free(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Claim a new file as :func:`claimed` does, and number the file if its name is taken."""
    path = pathlib.PurePosixPath(name)
    number = 1
    while os.path.lexists(folder / name):
        number += 1
        name = str(path.with_name(f"{path.stem}-{number}{path.suffix}"))
    return claimed(folder, name)


def _write_run(folder: pathlib.Path, table: Mapping[str, Any]) -> None:
    with written(folder / RUN) as file:
        file.write(f"{json.dumps(table, indent=2)}\n".encode())


def existing(root: pathlib.Path, name: str, *, explicit: bool) -> list[pathlib.Path]:
    """Return the existing folders for a result's name, in descending order of their numbers."""
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
    """Write ``data.nc``, ``configs/<config>.toml`` and ``run.json``.

    Files of an earlier result are removed from the folder. All other files are kept. ``run.json``
    contains ``about`` and the list of files. The folder is created if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begin(folder, keep=DATA)
    save_data(result, folder)
    (folder / "configs").mkdir(exist_ok=True)
    for name in result.config.values:
        text = result.config_toml.sel(config=name).item()
        free(folder, f"configs/{file_name(str(name))}.toml").write_text(text)
    finish(folder, about)


def begin(folder: pathlib.Path, *, keep: str = RUN) -> None:
    """Remove the files of an earlier result from a folder, and start a new list of files.

    The file ``keep`` remains until its replacement is complete.
    """
    earlier = manifest(folder)
    remaining = {RUN, keep}
    _write_run(folder, {"files": sorted(earlier | remaining)})
    for name in earlier - remaining:
        (folder / name).unlink(missing_ok=True)
    for name in _FOLDERS:
        for path in sorted((folder / name).glob("**/"), reverse=True):
            with contextlib.suppress(OSError):  # keep a folder that is not empty
                path.rmdir()
    _write_run(folder, {"files": sorted(remaining)})


def finish(folder: pathlib.Path, about: Mapping[str, Any]) -> None:
    """Write ``run.json`` with ``about`` and the list of files."""
    _write_run(folder, {**about, "files": sorted(manifest(folder))})


def save_data(result: xr.Dataset, folder: pathlib.Path) -> None:
    """Write ``data.nc`` atomically."""
    # Build the file in memory, because HDF5 crashes the process when the disk is full.
    content = result.to_netcdf(engine="h5netcdf")
    with written(folder / DATA) as file:
        file.write(content)


def about(folder: pathlib.Path) -> Run:
    """Return the content of ``run.json``, or an empty mapping if the file is missing.

    Raises:
      ConfigError: if the file is damaged.
    """
    try:
        content = (folder / RUN).read_bytes()
    except OSError:
        return {}
    advice = "The file is not overwritten. Move the file, or choose another --name."
    return decoded(folder / RUN, content, Run, advice)
