"""The shapes that stand beside the fields, checked where the library fills those fields.

Every NamedTuple and plain dataclass of the library whose annotations name shapes is watched: when
the library's own code makes one within a trace, its fields must have the kinds and shapes of their
annotations, a letter meaning one number within the tuple. What JAX rebuilds from leaves, with axes
of vmap or scan in front, is left alone. Only tests pay for this.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import pkgutil
import sys
import typing
from collections.abc import Iterator
from typing import Any

import jax
import jaxtyping

import pause_jax
from pause_jax.base.struct import PyTree

NAMES = {name: getattr(jaxtyping, name) for name in ("Array", "Bool", "Float", "Int", "Key")}

# Folders that need an extra. Flower has its own environment, where these tests also run.
EXTRAS = {
    "pause_jax.deploy.flower": "flwr",
    "pause_jax.analysis.report": "altair",
    "pause_jax.cli.tune": "optuna",
    "pause_jax.tuning": "optuna",
}


class ShapeError(AssertionError):
    """A field does not have the shape that stands beside it."""


def records() -> Iterator[type]:
    """Every NamedTuple and every plain dataclass that a module of the library defines."""
    for found in pkgutil.walk_packages(pause_jax.__path__, "pause_jax."):
        if found.name.endswith("__main__"):
            continue
        needed = [extra for folder, extra in EXTRAS.items() if found.name.startswith(folder)]
        if any(importlib.util.find_spec(extra) is None for extra in needed):
            continue
        module = importlib.import_module(found.name)
        for _, cls in inspect.getmembers(module, inspect.isclass):
            plain = dataclasses.is_dataclass(cls) and not issubclass(cls, PyTree)
            if cls.__module__ == found.name and (hasattr(cls, "_fields") or plain):
                yield cls


def shapes_of(cls: type) -> dict[str, Any]:
    """The annotated shapes of a NamedTuple's fields, by name."""
    known = vars(sys.modules[cls.__module__]) | NAMES
    found = {}
    for name, annotation in cls.__annotations__.items():
        text = str(getattr(annotation, "__forward_arg__", annotation))
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
    """Check the fields of all that the library makes of this class from now on."""
    shapes, name = shapes_of(cls), "__new__" if hasattr(cls, "_fields") else "__init__"
    make = getattr(cls, name)
    if not shapes or hasattr(make, "watches"):
        return bool(shapes)
    right: set[Any] = set()  # what was checked, as a check takes long

    def checked(this: Any, *args: Any, **kwargs: Any) -> Any:
        made = make(this, *args, **kwargs)
        if sys._getframe(1).f_globals.get("__name__", "").startswith("pause_jax"):
            values = {field: getattr(this if made is None else made, field) for field in shapes}
            # What a compiled program hands to the library's code is no tracer, and may be a batch.
            if any(isinstance(value, jax.core.Tracer) for value in values.values()):
                leaves, structure = jax.tree.flatten(values)
                kinds = ((type(x), getattr(x, "shape", 0), getattr(x, "dtype", 0)) for x in leaves)
                seen = structure, *kinds
                if seen not in right:
                    check(cls, values, shapes)
                    right.add(seen)
        return made

    checked.watches = True  # type: ignore[attr-defined]
    setattr(cls, name, checked)
    return True


def watch_all() -> list[type]:
    """Watch all records of the library; returns those that name shapes."""
    return [cls for cls in records() if watch(cls)]
