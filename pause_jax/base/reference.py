"""Names of objects in config files, ``package.module:name``: how they are written and looked up.

A config file is data. :func:`resolved` runs nothing that a file could choose: it reads the tables
of loaded modules, and refuses what is not of the expected kind. :func:`imported` is for files that
the user trusts as code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError

# What files of ``--load`` define, by the file's name, such as ``my_net.py``.
LOADED: dict[str, Mapping[str, Any]] = {}
# The only module that a name in a config file makes this import.
_NNX = "flax.nnx"


def text_of(value: Any) -> str:
    """The reference to a class, a function or an object; what it was made with is in brackets."""
    named = value if hasattr(value, "__qualname__") else type(value)
    text = f"{named.__module__}:{named.__qualname__}"
    return text if named is value else f"{text} {value!r}"


def resolved(where: str, text: str, admits: Callable[[Any], bool], kind: str) -> Any:
    """The object that a text ``module:name`` names, of a loaded module or a file of ``--load``.

    Imports no module (but ``flax.nnx``) and calls nothing. ``where`` is the config's field, for
    messages; ``admits`` says, without calling it, whether an object is of the expected ``kind``.

    Raises:
      ConfigError: if nothing of that name is loaded, or it is of another kind.
    """
    module, _, path = text.partition(":")
    if module == _NNX:
        importlib.import_module(_NNX)
    table = LOADED.get(module)
    if table is None:
        found: Any = sys.modules.get(module)
        if not isinstance(found, ModuleType):
            name = module if module.endswith(".py") else "FILE.py"
            raise ConfigError(
                f"{where} = {shown(text)}: {shown(module)} is not loaded, and a config file "
                f"imports no code. Load it (--load {name}), or trust the file as code (--trust, "
                "in Python trust=True)."
            )
        table = vars(found)
    # By the tables, as getattr may run a module's or a class's own code.
    first, *inner = path.split(".")
    found = table.get(first)
    for name in inner:
        found = vars(found).get(name) if isinstance(found, type) else None
    if found is None:
        raise ConfigError(f"{where} = {shown(text)}: {shown(module)} has no {shown(path)}.")
    if not admits(found):
        raise ConfigError(
            f"{where} = {shown(text)}: must be {kind}, as a config file can call nothing else. "
            "Trust the file as code (--trust, in Python trust=True), or pass the object in Python."
        )
    return found


def imported(where: str, text: str) -> Any:
    """The object that a trusted text names, of any kind; its module is imported.

    Raises:
      ConfigError: if it cannot be imported.
    """
    module, _, path = text.partition(":")
    try:
        first, *inner = path.split(".")
        if module in LOADED:
            found: Any = LOADED[module][first]
        else:
            found = getattr(importlib.import_module(module), first)
        for name in inner:
            found = getattr(found, name)
    except Exception as error:
        raise ConfigError(
            f"{where} = {shown(text)}: cannot be imported ({type(error).__name__}: {error}). It "
            "must be package.module:name; an object without a name can only be passed in Python."
        ) from error
    return found
