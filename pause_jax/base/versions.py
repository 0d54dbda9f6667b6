"""Versions of installed packages."""

from __future__ import annotations

from importlib import metadata


def version(package: str) -> str:
    """The version of a package; ``unknown`` of a checkout that was not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
