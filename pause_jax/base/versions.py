"""Versions of installed packages."""

from __future__ import annotations

from importlib import metadata


def version(package: str) -> str:
    """Return the version of a package, or ``unknown`` if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
