"""Conversion of configs to and from TOML, the format used in config files and results.

A config file cannot load or run arbitrary code (see :mod:`pause_jax.base.registry`).
"""

from __future__ import annotations

import dataclasses
import pathlib
import tomllib
from collections.abc import Iterable
from typing import Any, TypeVar

import tomli_w

from pause_jax.base.registry import choices, look_up, text_of
from pause_jax.base.source_file import content_of
from pause_jax.base.spelling import shortest, shown
from pause_jax.base.struct import (
    Config,
    ConfigError,
    field_at,
    fields,
    is_node,
    is_static,
    no_field,
    prefixed,
)
from pause_jax.config.sim_config import SimConfig

__all__ = ["dumps", "from_dict", "load", "loads", "to_dict"]

C = TypeVar("C", bound=Config)
# Maximum size of a config file in bytes. Typical files are a few kilobytes long.
LARGEST = 10 * 2**20


def to_dict(config: Config) -> dict[str, Any]:
    """Convert a config to nested dicts of plain values, with the ``name`` of each nested config.

    Fields whose value and default are both None are omitted.

    Raises:
      ConfigError: if a custom config class has no ``name``, which config files use to refer to it.
    """
    own = vars(type(config)).get("name")
    table: dict[str, Any] = {"name": own} if own else {}
    for name, value, _, field in fields(config):
        factory: Any = field.default_factory
        if value is None:
            if (factory() if is_node(field) else field.default) is not None:
                table[name] = "none"
        elif is_node(field):
            table[name] = _node_table(value, field)
        elif is_static(field):
            table[name] = _plain(value)
        else:
            table[name] = shortest(value)
    return table


def _plain(value: Any) -> Any:
    """Convert a static value to a TOML value (a list for a tuple, a string for a custom object)."""
    if type(value) is tuple:
        return [_plain(entry) for entry in value]
    return value if isinstance(value, str | int | float) else text_of(value)


def _static(value: Any) -> Any:
    return tuple(map(_static, value)) if isinstance(value, list) else value


def _node_table(value: Config, field: dataclasses.Field[Any]) -> dict[str, Any]:
    table, cls = to_dict(value), type(value)
    if "name" not in table and not cls is field.default_factory is field.metadata["rule"].kind:
        raise ConfigError(
            f"{field.name} = {cls.__name__}(...): the class must define a name, for use in results "
            f'and config files. Add name = "{cls.__name__.lower()}" to the class.'
        )
    return table


def from_dict(table: dict[str, Any]) -> SimConfig:
    """Build a config from nested dicts of plain values. Missing fields keep their defaults.

    Raises:
      ConfigError: if a field or name is unknown. The message suggests the nearest match.
    """
    return _filled(SimConfig(), table, "")


def dumps(config: SimConfig) -> str:
    """Convert a config to a TOML string."""
    return tomli_w.dumps(to_dict(config))


def parsed(text: str) -> dict[str, Any]:
    """Parse a TOML string, or raise ConfigError if the string is invalid."""
    try:
        return tomllib.loads(str(text))
    except RecursionError:
        raise ConfigError("not a TOML file (values nested too deeply).") from None
    except ValueError as error:  # also raised for numbers with thousands of digits
        raise ConfigError(f"not a TOML file ({error}).") from None


def loads(text: str) -> SimConfig:
    """Build a config from a TOML string."""
    return from_dict(parsed(text))


def load(path: str | pathlib.Path) -> SimConfig:
    """Read a config from a TOML file."""
    content = content_of("FILE", path)
    with prefixed(path):
        if len(content) > LARGEST:
            raise ConfigError(f"must be a config file of at most {LARGEST // 2**20} MiB.")
        try:
            # Some Windows editors write a byte-order mark at the start of a file.
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ConfigError("must be a TOML file in UTF-8.") from None
        if not text.strip():
            raise ConfigError(
                "must not be empty. Write a config with pause-jax show PRESET > FILE."
            )
        return loads(text)


def changed(config: C, changes: Iterable[str]) -> C:
    """Apply ``PATH=VALUE`` changes to a config, in order.

    Raises:
      ConfigError: if a change is malformed, or a path or name is unknown.
    """
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"{change}: must be PATH=VALUE, for example reward.gamma=0.")
        config = config.override({path: parse_value(config, path, text)})
    return config


def parse_value(config: Config, path: str, text: str) -> Any:
    """Parse ``text`` (a TOML value, name or plain string) as the value of the field at ``path``.

    Raises:
      ConfigError: if the path or a name is unknown.
    """
    field = field_at(config, path)
    if field.metadata["rule"].optional and text.strip() == "none":
        return None
    if is_node(field):
        return _node(path, text, field)
    try:
        return _static(tomllib.loads(f"value = {text}")["value"])
    except RecursionError:
        raise ConfigError(f"{path} = {shown(text)}: is nested too deeply.") from None
    except ValueError:  # also raised for numbers with thousands of digits
        return text


def _filled(config: C, table: dict[str, Any], path: str) -> C:
    """Return a copy of the config with the fields in ``table`` replaced."""
    known = {field.name: field for field in dataclasses.fields(config)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        where = f"{path}.{name}" if path else name
        if name == "name" and path:
            continue
        if name not in known:
            where = where if len(where) < 200 else shown(where)
            raise ConfigError(f"{where}: {no_field(name, config, path, SimConfig())}")
        if known[name].metadata["rule"].optional and value == "none":
            values[name] = None
        elif is_node(known[name]):
            values[name] = _node(where, value, known[name])
        else:
            values[name] = _static(value)
    return config.replace(**values)


def _node(path: str, value: Any, field: dataclasses.Field[Any]) -> Any:
    """Build a nested config of the field's declared type from a table or a name.

    A table may omit the name if the field's default has exactly the declared type.
    """
    rule = field.metadata["rule"]
    if isinstance(value, str):
        if not choices(rule.kind):
            known = ", ".join(f"{path}.{each.name}" for each in dataclasses.fields(rule.kind))
            none = "none or " if rule.optional else ""
            raise ConfigError(
                f"{path} = {shown(value)}: must be {none}a table. Its fields: {known}."
            )
        return look_up(rule.kind, value, path)
    if not isinstance(value, dict):
        raise ConfigError(f"{path} = {shown(value)}: must be a table or a name.")
    if "name" in value:
        return _filled(look_up(rule.kind, value["name"], f"{path}.name"), value, path)
    factory: Any = field.default_factory
    if factory is rule.kind:
        return _filled(factory(), value, path)
    raise ConfigError(f"{path}.name: must be set to one of {', '.join(choices(rule.kind))}.")
