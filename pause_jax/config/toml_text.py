"""A table as TOML text (toml.io/en/v1.0.0): Python itself only reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, Any]) -> str:
    """Text of nested tables of truth values, numbers, strings and lists of all of these."""
    return "\n".join(_sections(table, ""))


def _sections(table: Mapping[str, Any], path: str) -> list[str]:
    """The lines of a table, then its own tables, with an empty line before each."""
    plain = {name: value for name, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"[{path}]"] if path and (plain or not table) else []
    lines += [f"{_key(name)} = {_value(value, '')}" for name, value in plain.items()]
    text = ["\n".join(lines) + "\n"] if lines else []
    for name, value in table.items():
        if isinstance(value, Mapping):
            text += _sections(value, f"{path}.{_key(name)}" if path else _key(name))
    return text


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    # JSON escapes what TOML does, but for one control character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, indent: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v, '')}" for k, v in value.items()) + " }"
    if not isinstance(value, Sequence):
        raise TypeError(f"{value!r}: has no form in TOML")
    if not value:
        return "[]"
    entries = "".join(f"{indent}    {_value(entry, indent + '    ')},\n" for entry in value)
    return f"[\n{entries}{indent}]"
