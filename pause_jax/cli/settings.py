"""What ``--load`` and ``--set`` do."""

from __future__ import annotations

import pathlib
import runpy
from collections.abc import Iterable
from typing import TypeVar

from pause_jax import config_file
from pause_jax.struct import Config, ConfigError

C = TypeVar("C", bound=Config)


def load_files(files: Iterable[pathlib.Path] | None) -> None:
    """Run Python files; the config classes that they define are then known by name."""
    for file in files or ():
        if not file.is_file():
            raise ConfigError(f"--load {file}: must be a Python file, and there is none.")
        try:
            runpy.run_path(str(file))
        except Exception as error:
            raise ConfigError(f"--load {file}: {type(error).__name__}: {error}.") from error


def changed(config: C, changes: Iterable[str] | None) -> C:
    """The config with the changes of ``--set``."""
    try:
        return config_file.changed(config, changes or ())
    except ConfigError as error:
        raise ConfigError(f"--set {error}") from None
