"""Words of messages: values in short, and suggestions for unknown names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

# The papers' symbols that are fields of configs (docs/notation.md), in small letters, and what
# others call such a field; the first known one counts.
SYMBOLS: dict[str, tuple[str, ...]] = {
    "k": ("num_clients",),
    "clients": ("num_clients",),
    "m": ("num_selected",),
    "t": ("num_rounds",),
    "rounds": ("num_rounds",),
    "tau_min": ("min_latency",),
    "tau_max": ("max_latency",),
    "zeta": ("speed_weight",),
    "kappa": ("cooling",),
    "eps_bar": ("total_epsilon",),
    "eps": ("total_epsilon",),
    "epsilon": ("total_epsilon",),
    "eta": ("decay", "learning_rate"),
    "lr": ("learning_rate",),
    "delta": ("sensitivity",),
    "d": ("candidates",),
    "v": ("latency_weight",),
    "mu": ("proximal",),
}


def one_line(text: str) -> str:
    """A text without line breaks; what cannot be printed is escaped."""
    line = " ".join(part.strip() for part in text.split("\n"))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def shown(value: Any) -> str:
    """A value in one line of at most 200 characters."""
    text = one_line(repr(value))
    return text if len(text) <= 200 else f"{text[:197]}..."


def shortest(value: Any) -> float:
    """The shortest decimal of a float32: 0.01 stays 0.01."""
    return float(str(np.float32(value)))


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that names what was perhaps meant, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def no_field(name: str, part: Any, path: str, whole: Any) -> str:
    """The message for an unknown field of ``part``: a suggestion, and the known fields.

    ``path`` is the part's dotted path in the dataclass ``whole``, in which the field may be
    elsewhere; empty for the whole itself.
    """
    own = (
        [field.name for field in dataclasses.fields(part)] if dataclasses.is_dataclass(part) else []
    )
    meant = _meant(name, own, part, path, whole) if own else ""
    return (
        f"there is no field {shown(name)} in {type(part).__name__}.{meant} It has "
        f"{', '.join(own) or 'no fields'}."
    )


def _meant(name: str, own: list[str], part: Any, path: str, whole: Any) -> str:
    symbols = SYMBOLS.get(name.lower(), ())
    for paths in (_paths(part, path), _paths(whole, "")):
        by_name = {field: where for where, field in reversed(list(paths))}
        for called in (name, *symbols):
            if called in by_name:
                return f" Did you mean {by_name[called]!r}?"
    if symbols:
        return f" {name} is called {symbols[0]!r} here, a field of another choice."
    return nearest(name, own)


def _paths(tree: Any, path: str) -> Iterator[tuple[str, str]]:
    """Dotted path and name of every field of a dataclass and of those below it, level by level."""
    level = [(path, tree)]
    while level:
        below = []
        for where, part in level:
            for field in dataclasses.fields(part):
                here = f"{where}.{field.name}" if where else field.name
                yield here, field.name
                value = getattr(part, field.name)
                if dataclasses.is_dataclass(value) and not isinstance(value, type):
                    below.append((here, value))
        level = below
