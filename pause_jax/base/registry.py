"""Lookup of the classes and objects that config files refer to.

Config files refer to a subclass of ``PolicyConfig``, ``Mechanism``, etc. by its ``name``. Library
classes and custom classes are treated alike. Config files refer to functions and other objects as
``package.module:name``. A config file must not run arbitrary code, so :func:`resolved` looks up
names only in loaded modules and in ``--load`` files, and rejects objects of the wrong kind.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pause_jax.base.spelling import nearest, shown
from pause_jax.base.struct import Config, ConfigError, is_ours

C = TypeVar("C", bound=Config)
_SETTINGS: dict[type[Config], dict[str, Config]] = {}
# Namespaces of the files loaded with ``--load``, keyed by file name, such as ``my_net.py``.
LOADED: dict[str, Mapping[str, Any]] = {}
# The only module that may be imported when a config file is loaded.
_NNX = "flax.nnx"


def _named_classes(base: type[C]) -> Iterator[type[C]]:
    if vars(base).get("name"):
        yield base
    for cls in base.__subclasses__():
        yield from _named_classes(cls)


def choices(base: type[C]) -> dict[str, type[C]]:
    """Return the named classes among ``base`` and its subclasses, keyed by name.

    If several classes share a name (for example after a notebook cell is rerun), the last one wins.
    """
    return {cls.name: cls for cls in _named_classes(base)}


def label(config: Config) -> str:
    """Return a config's name for messages, or its class name if it has none."""
    return config.name or type(config).__name__


def name_settings(base: type[C], settings: Mapping[str, C]) -> None:
    """Register configs of kind ``base`` by name, for use by :func:`look_up`."""
    _SETTINGS.setdefault(base, {}).update(settings)


def look_up(base: type[C], name: str, where: str) -> C:
    """Return the config registered as ``name``, or a default config of the class with this name.

    ``base`` is the kind of config, such as ``PolicyConfig``. Error messages contain ``where``, the
    field or option in which the name occurs.

    Raises:
      ConfigError: if the name is not a string, is unknown (the message lists the known names), or
        is used by both the library and a custom class.
    """
    known: dict[str, Any] = {**choices(base), **_SETTINGS.get(base, {})}
    if not isinstance(name, str):
        raise ConfigError(f"{where} = {shown(name)}: must be a name in quotes.")
    if name not in known:
        rule = f"must be one of {', '.join(known)}" if known else "no class has this name"
        raise ConfigError(
            f"{where} = {shown(name)}: {rule}.{nearest(name, known)} "
            "For a custom class, define `name` and load its file (--load FILE.py)."
        )
    claims = {is_ours(cls): cls for cls in _named_classes(base) if cls.name == name}
    if False in claims and (True in claims or name in _SETTINGS.get(base, {})):
        raise ConfigError(
            f"{claims[False].__module__}.{claims[False].__name__}.name = {name!r}: is already "
            "used by pause_jax. Choose another name."
        )
    chosen = known[name]
    return chosen() if isinstance(chosen, type) else chosen


def text_of(value: Any) -> str:
    """Return ``module:name`` of a class or function, or ``module:class repr`` of another object."""
    named = value if hasattr(value, "__qualname__") else type(value)
    text = f"{named.__module__}:{named.__qualname__}"
    return text if named is value else f"{text} {value!r}"


def resolved(where: str, text: str, admits: Callable[[Any], bool], kind: str) -> Any:
    """Return the object ``module:name`` from a loaded module or a file passed to ``--load``.

    This function imports only ``flax.nnx``, and never calls functions from the named module. The
    object must satisfy ``admits``. Messages contain ``where`` (a config field) and ``kind``.

    Raises:
      ConfigError: if the module is not loaded, the name is missing, or the kind is wrong.
    """
    module, _, path = text.partition(":")
    if module == _NNX:
        importlib.import_module(_NNX)
    table = LOADED.get(module)
    if table is None:
        loaded = sys.modules.get(module)
        if not isinstance(loaded, types.ModuleType):
            name = module if module.endswith(".py") else "FILE.py"
            raise ConfigError(
                f"{where} = {shown(text)}: {shown(module)} is not loaded, and config files "
                f"cannot import code. Load it with --load {name}."
            )
        table = vars(loaded)
    # Read the namespaces directly, because getattr may run code in the module or class.
    first, *inner = path.split(".")
    target = table.get(first)
    for name in inner:
        target = vars(target).get(name) if isinstance(target, type) else None
    if target is None:
        raise ConfigError(f"{where} = {shown(text)}: {shown(module)} has no {shown(path)}.")
    if not admits(target):
        raise ConfigError(
            f"{where} = {shown(text)}: must be {kind} in a config file. Pass other objects in "
            "Python."
        )
    return target


def require(module: str, extra: str, what: str) -> Any:
    """Import the module that ``what`` needs. Raise ConfigError if its package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigError(
            f"{what} requires {package}. Run pip install 'pause_jax[{extra}]'."
        ) from None
