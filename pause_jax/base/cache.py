"""Cache folder for decoded data sets and compiled programs."""

from __future__ import annotations

import os
import pathlib

from pause_jax.base.struct import ConfigError


def cache_folder() -> pathlib.Path:
    """Return ``$PAUSE_JAX_CACHE`` if set, otherwise ``pause_jax`` in the user's cache folder."""
    if folder := os.environ.get("PAUSE_JAX_CACHE"):
        return pathlib.Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return pathlib.Path(base).expanduser() / "pause_jax"
    except RuntimeError:
        raise ConfigError("HOME is not set. Set it, or PAUSE_JAX_CACHE to a folder.") from None
