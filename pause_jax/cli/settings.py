"""What ``--load`` and ``--set`` do."""

from __future__ import annotations

import contextlib
import pathlib
import runpy
from collections.abc import Iterable, Iterator
from typing import TypeVar

from pause_jax import config_file
from pause_jax.config import SimConfig
from pause_jax.presets import PRESETS
from pause_jax.struct import Config, ConfigError

C = TypeVar("C", bound=Config)


def load_files(files: Iterable[pathlib.Path] | None) -> None:
    """Run Python files; the config classes that they define are then known by name."""
    for file in files or ():
        if not file.is_file():
            raise ConfigError(f"--load {file}: must be a Python file, and there is none.")
        try:
            runpy.run_path(str(file))
        except (Exception, SystemExit) as error:
            raise ConfigError(f"--load {file}: {type(error).__name__}: {error}.") from error


def changed(config: C, changes: Iterable[str] | None) -> C:
    """The config with the changes of ``--set``."""
    try:
        return config_file.changed(config, changes or ())
    except ConfigError as error:
        raise ConfigError(f"--set {error}") from None


def base_config(base: str, data_dir: str | None, change: list[str] | None) -> SimConfig:
    """The config of a preset's name or a file, with the changes of ``--set``.

    Raises:
      ConfigError: if it is neither.
    """
    if base in PRESETS:
        return changed(PRESETS[base](data_dir=data_dir), change)
    if data_dir is not None:
        raise ConfigError(f"--data-dir {data_dir}: is for presets; {base} names its own folder.")
    if not pathlib.Path(base).is_file():
        raise ConfigError(f"{base}: must be a config file or one of {', '.join(PRESETS)}.")
    config = config_file.load(base)
    with about(base):
        return changed(config, change)


@contextlib.contextmanager
def about(what: str | pathlib.Path) -> Iterator[None]:
    """Begin every ConfigError from within with what it is about, such as a config file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
