"""Configs as TOML: what a file holds, the CLI runs, and every result carries."""

from __future__ import annotations

import dataclasses
import pathlib
import tomllib
from typing import Any, TypeVar

import numpy as np
import tomli_w

from pause_jax.config import Learning, SimConfig
from pause_jax.latency import LATENCIES
from pause_jax.learning import DATASETS, MODELS, PARTITIONS
from pause_jax.policies import INDEX_RULES, NAMED, POLICIES
from pause_jax.privacy import BUDGETS, MECHANISMS, Projected
from pause_jax.reward import Reward
from pause_jax.search import SEARCHES
from pause_jax.struct import Config, ConfigError, choices, fields, is_node, is_static, nearest

# What may stand at a nested field, by the field's name.
FAMILIES: dict[str, tuple[type[Config], ...]] = {
    "policy": POLICIES,
    "search": SEARCHES,
    "index": INDEX_RULES,
    "reward": (Reward,),
    "latency": LATENCIES,
    "privacy": MECHANISMS,
    "inner": tuple(m for m in MECHANISMS if m.unit == "update" and m is not Projected),
    "budget": BUDGETS,
    "learning": (Learning,),
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
}

C = TypeVar("C", bound=Config)


def to_dict(config: Config) -> dict[str, Any]:
    """Plain values of a config: nested tables with their ``name``; unset options are left out."""
    table: dict[str, Any] = {"name": config.name} if config.name else {}
    for name, value, _, field in fields(config):
        if is_node(field):
            table[name] = "none" if value is None else to_dict(value)
        elif is_static(field):
            if value is not None:
                table[name] = list(value) if isinstance(value, tuple) else value
        else:
            # The shortest decimal that is the same float32: 0.01 stays 0.01.
            table[name] = float(str(np.float32(value)))
    return table


def from_dict(table: dict[str, Any]) -> SimConfig:
    """A config from plain values; what is left out keeps its default.

    Raises:
      ConfigError: for an unknown field or name, with the nearest that exists.
    """
    return _build(SimConfig, table, "")


def dumps(config: SimConfig) -> str:
    """TOML text of a config."""
    return tomli_w.dumps(to_dict(config))


def loads(text: str) -> SimConfig:
    """A config from TOML text. Raises ConfigError if it is not TOML or not a config."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not a TOML file: {error}.") from None
    return from_dict(table)


def load(path: str | pathlib.Path) -> SimConfig:
    """A config from a TOML file. Raises ConfigError that names the file."""
    try:
        return loads(pathlib.Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_value(path: str, text: str) -> Any:
    """The value of ``path=text`` on a command line: a TOML value, a config's name, or a string."""
    family = FAMILIES.get(path.rpartition(".")[2])
    if family is not None:
        return None if text == "none" and family == (Learning,) else _node(path, text)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return tuple(value) if isinstance(value, list) else value


def _build(cls: type[C], table: dict[str, Any], path: str) -> C:
    known = {field.name: field for field in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        where = f"{path}.{name}" if path else name
        if name == "name":
            continue
        if name not in known:
            raise ConfigError(
                f"{where}: there is no such field.{nearest(name, known)} "
                f"{cls.__name__} has {', '.join(known)}."
            )
        if is_node(known[name]):
            optional = known[name].metadata["rule"].optional
            values[name] = None if optional and value == "none" else _node(where, value)
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def _node(path: str, value: Any) -> Config:
    """A nested config from its table, or from its name alone."""
    field = path.rpartition(".")[2]
    family = FAMILIES[field]
    if isinstance(value, str):
        if field == "policy" and value in NAMED:
            return NAMED[value]
        value = {"name": value}
    if not isinstance(value, dict):
        raise ConfigError(f"{path} = {value!r}: must be a table or a name.")
    if len(family) == 1:
        return _build(family[0], value, path)
    known = {cls.name: cls for cls in family}
    name = value.get("name")
    if name not in known:
        # A user's own class stands in a file by its name too, once it is imported.
        known = choices(_base(family)) | known
    if name not in known:
        raise ConfigError(
            f"{path}.name = {name!r}: must be one of {', '.join(known)}."
            f"{nearest(str(name), known)} A class of your own must be loaded first (--load FILE)."
        )
    return _build(known[name], value, path)


def _base(family: tuple[type[Config], ...]) -> type[Config]:
    """The class right below Config that all of a family descend from."""
    lineage = family[0].__mro__
    return lineage[lineage.index(Config) - 1]
