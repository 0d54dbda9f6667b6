"""What one's own code holds, as a text in a config file: ``package.module:name``."""

from __future__ import annotations

import importlib
from typing import Any

from pause_jax.struct import ConfigError


def text_of(value: Any) -> str:
    """The reference to a class, a function or an object; what it was made with is in brackets."""
    named = value if hasattr(value, "__qualname__") else type(value)
    text = f"{named.__module__}:{named.__qualname__}"
    return text if named is value else f"{text} {value!r}"


def resolved(where: str, text: str) -> Any:
    """What a reference stands for.

    Raises:
      ConfigError: if it cannot be imported.
    """
    module, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        raise ConfigError(
            f"{where} = {text!r}: cannot be imported ({type(error).__name__}: {error}). It must be "
            "package.module:name; what a program made on its way can only be given in Python."
        ) from error
    return found
