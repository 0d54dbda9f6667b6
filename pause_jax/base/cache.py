"""Where decoded data and compiled programs are kept."""

from __future__ import annotations

import os
import pathlib

from pause_jax.base.struct import ConfigError


def cache_folder() -> pathlib.Path:
    """The folder: $PAUSE_JAX_CACHE, or pause_jax under the user's cache."""
    if folder := os.environ.get("PAUSE_JAX_CACHE"):
        return pathlib.Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return pathlib.Path(base).expanduser() / "pause_jax"
    except RuntimeError:
        raise ConfigError("HOME is not set. Set it, or PAUSE_JAX_CACHE to a folder.") from None
