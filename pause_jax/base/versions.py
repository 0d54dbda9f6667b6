"""Versions of installed packages, and imports of optional packages."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

from pause_jax.base.struct import ConfigError


def version(package: str) -> str:
    """Return the version of a package, or ``unknown`` for a checkout that is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def require(module: str, extra: str, what: str) -> Any:
    """Import a package of an extra, which ``what`` needs, or raise ConfigError if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigError(
            f"{what} requires {package}. Run pip install 'pause_jax[{extra}]'."
        ) from None
