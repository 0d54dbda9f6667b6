"""The shapes that stand beside the fields, checked where the library fills those fields.

Every NamedTuple of the library whose annotations name shapes is watched: when the library's own
code makes one, its fields must have the kinds and shapes of their annotations, a letter meaning one
number within the tuple. What JAX rebuilds from leaves, with axes of vmap or scan in front, is left
alone. Only tests pay for this.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Iterator
from typing import Any

import jax
import jaxtyping

import pause_jax

NAMES = {name: getattr(jaxtyping, name) for name in ("Array", "Bool", "Float", "Int", "Key")}


class ShapeError(AssertionError):
    """A field does not have the shape that stands beside it."""


def named_tuples() -> Iterator[type]:
    """Every NamedTuple that a module of the library defines."""
    for found in pkgutil.walk_packages(pause_jax.__path__, "pause_jax."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == found.name and issubclass(cls, tuple) and hasattr(cls, "_fields"):
                yield cls


def shapes_of(cls: type) -> dict[str, Any]:
    """The annotated shapes of a NamedTuple's fields, by name."""
    known = vars(sys.modules[cls.__module__]) | NAMES
    found = {}
    for name, annotation in cls.__annotations__.items():
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", "")
        if any(f"{kind}[" in text for kind in NAMES):
            found[name] = typing.get_type_hints(
                type(cls.__name__, (), {"__annotations__": {name: text}}), known
            )[name]
    return found


def check(cls: type, values: dict[str, Any], shapes: dict[str, Any]) -> None:
    """Raise ShapeError unless the values have the shapes of their fields."""
    with jaxtyping.jaxtyped("context"):
        for name, shape in shapes.items():
            if name in values and not isinstance(values[name], shape):
                seen = jax.tree.map(lambda x: getattr(x, "aval", x), values[name])
                raise ShapeError(f"{cls.__name__}.{name}: {seen} is no {shape}")


def watch(cls: type) -> bool:
    """Check the fields of every tuple of this class that the library makes from now on."""
    shapes, make = shapes_of(cls), cls.__new__
    if not shapes or hasattr(make, "watches"):
        return False

    def checked(this: type, *args: Any, **kwargs: Any) -> Any:
        made = make(this, *args, **kwargs)
        if sys._getframe(1).f_globals.get("__name__", "").startswith("pause_jax"):
            check(cls, made._asdict(), shapes)
        return made

    checked.watches = True  # type: ignore[attr-defined]
    cls.__new__ = checked  # type: ignore[method-assign,assignment]
    return True


def watch_all() -> list[type]:
    """Watch every NamedTuple of the library; returns those that name shapes."""
    return [cls for cls in named_tuples() if watch(cls)]
