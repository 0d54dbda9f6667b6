"""Names of version 0.2 that changed: they work for one release, with a warning."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


def warn(old: str, new: str) -> None:
    """Warn that a name has changed."""
    message = f"{old} is now {new}. The old name goes with the next release."
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def renamed_fields(
    names: Mapping[str, str], values: Mapping[str, Mapping[Any, Any]]
) -> Callable[[C], C]:
    """Return a decorator: a config class that also takes old names of its fields, and old values.

    Args:
      names: old name -> field.
      values: field -> (old value -> value).
    """

    def decorate(cls: C) -> C:
        init = cls.__init__  # type: ignore[misc]

        @functools.wraps(init)
        def init_with_old_names(self: Any, **given: Any) -> None:
            for old in names.keys() & given.keys():
                warn(old, names[old])
                given[names[old]] = given.pop(old)
            for name in values.keys() & given.keys():
                value = given[name]
                if isinstance(value, str) and value in values[name]:
                    given[name] = values[name][value]
                    warn(f"{name} = {value!r}", repr(given[name]))
            init(self, **given)

        def read_old_name(self: Any, name: str) -> Any:
            if name in names:
                warn(name, names[name])
                return getattr(self, names[name])
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        cls.__init__ = init_with_old_names  # type: ignore[misc]
        cls.__getattr__ = read_old_name  # type: ignore[attr-defined]
        cls.RENAMED = dict(names)  # type: ignore[attr-defined]
        return cls

    return decorate


def current_name(config: Any, name: str) -> str:
    """Return the present name of a config's field."""
    new = str(getattr(config, "RENAMED", {}).get(name, name))
    if new != name:
        warn(name, new)
    return new


def read_by_old_name(owner: Any, old: str, new: str) -> Any:
    """Return the attribute ``new`` of an owner that was asked for ``old``."""
    warn(f"{type(owner).__name__}.{old}", new)
    return getattr(owner, new)


def old_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module that also has the names of its things of before."""

    def read(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", names[name])
        return getattr(sys.modules[module], names[name])

    return read
