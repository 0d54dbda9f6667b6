"""The registry: the config classes of a kind, and what their names stand for.

A class below a kind (``PolicyConfig``, ``Mechanism``, ...) that has a ``name`` of its own is in it
once it is defined, whether the library's or a user's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pause_jax.base.spelling import nearest, shown
from pause_jax.base.struct import Config, ConfigError, is_ours

C = TypeVar("C", bound=Config)
_SETTINGS: dict[type[Config], dict[str, Config]] = {}


def _named_classes(base: type[C]) -> Iterator[type[C]]:
    if vars(base).get("name"):
        yield base
    for cls in base.__subclasses__():
        yield from _named_classes(cls)


def choices(base: type[C]) -> dict[str, type[C]]:
    """Every class at or below ``base`` that has a name of its own, by its name; also custom ones.

    Of classes with one name (a notebook's cell run again) the last counts.
    """
    return {cls.name: cls for cls in _named_classes(base)}


def label(config: Config) -> str:
    """How messages call a config: its name, or that of its class."""
    return config.name or type(config).__name__


def name_settings(base: type[C], settings: Mapping[str, C]) -> None:
    """Let names stand for configs of class ``base`` that are not their class's default."""
    _SETTINGS.setdefault(base, {}).update(settings)


def look_up(base: type[C], name: str, where: str) -> C:
    """The config that a name stands for: a named setting, or a class with its defaults.

    ``base`` is the kind, such as ``PolicyConfig``; custom classes below it count. ``where`` is what
    asked for it, for messages.

    Raises:
      ConfigError: for what is no text, for an unknown name, with the names that exist, and for a
        library name that a custom class has taken.
    """
    known: dict[str, Any] = {**choices(base), **_SETTINGS.get(base, {})}
    if not isinstance(name, str):
        raise ConfigError(f"{where} = {shown(name)}: must be a name, in quotes.")
    if name not in known:
        rule = f"must be one of {', '.join(known)}" if known else "nothing goes by that name"
        raise ConfigError(
            f"{where} = {shown(name)}: {rule}.{nearest(name, known)} "
            "A custom class needs a `name`, and its file must be loaded (--load FILE.py)."
        )
    claims = {is_ours(cls): cls for cls in _named_classes(base) if cls.name == name}
    if False in claims and (True in claims or name in _SETTINGS.get(base, {})):
        raise ConfigError(
            f"{claims[False].__module__}.{claims[False].__name__}.name = {name!r}: is a name of "
            "the library's. Give your class another one."
        )
    chosen = known[name]
    return chosen() if isinstance(chosen, type) else chosen
