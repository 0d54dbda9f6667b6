"""The file of a saved selector."""

from __future__ import annotations

import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pause_jax.base.source_file import written
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, config_file
from pause_jax.privacy import PerClient, Schedule


def write(path: pathlib.Path, arrays: dict[str, Any]) -> None:
    """Write arrays, whole or not at all. Raises ConfigError if the file cannot be written."""
    try:
        with written(path) as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}).") from None


def read(
    path: str | pathlib.Path, config: SimConfig | None
) -> tuple[SimConfig, dict[str, NDArray[Any]]]:
    """The config and the arrays of a file; the given config if it equals that of the file.

    Raises:
      ConfigError: if it cannot be read.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            kept = dict(arrays)
        text = str(kept["config"])
        if config is None or config_file.dumps(config) != text:
            config = config_file.loads(text)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: is no saved selector ({error}).") from None
    return config, kept


def with_kept_budgets(config: SimConfig, kept: Mapping[str, NDArray[Any]]) -> SimConfig:
    """The config of a saved selector with the budgets that its key drew."""
    budget = config.privacy.budget
    if not isinstance(budget, Schedule) or budget.law is None:
        return config
    own = budget.replace(total_epsilon=1.0, law=PerClient(values=tuple(kept["budget"].tolist())))
    return config.replace(privacy=config.privacy.with_budget(own))
