"""Configuration dataclasses: frozen, keyword-only JAX pytrees that know the rules of their fields.

A field is one of three kinds:

* ``number(...)``: a traced float. It can be swept or vmapped without recompiling.
* ``static(...)``: fixes a shape, a length or a branch. A new value compiles anew, as a rule.
* ``node(...)``: a nested config.

Rules are checked on entry (``pause_jax.base.checks``) and not in ``__post_init__``: some need the
whole config, and ``replace`` within a trace calls the class with tracers. JAX itself rebuilds a
config without calling its class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from pause_jax.base.spelling import nearest, one_line, shown

# Characters of a message: what a file says can be longer than any reader's patience.
_LONGEST = 2000


class ConfigError(ValueError):
    """A configuration that cannot run. The message names the value, the rule and the fix, and is
    one line, whatever the value.
    """

    def __init__(self, message: str):
        line = one_line(message)
        if len(line) > _LONGEST:
            line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
        super().__init__(line)


def is_ours(part: Any) -> bool:
    """Return whether a class or a function is the library's."""
    return str(getattr(part, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


class Reference:
    """Kind of a static field that holds an object, or ``package.module:name`` of one; such a text
    is looked up by :mod:`pause_jax.base.registry` alone.
    """


class Rule(NamedTuple):
    """What a field's value must satisfy. ``None`` bounds are not checked."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] | None = None
    optional: bool = False
    kind: type | None = None

    def describe(self) -> str:
        """Return the rule in words, for messages and help."""
        if self.choices is not None:
            return "one of " + ", ".join(self.choices)
        parts = [
            f"{word} {bound if isinstance(bound, int) else f'{bound:g}'}"
            for word, bound in ((">=", self.at_least), (">", self.above), ("<=", self.at_most))
            if bound is not None
        ]
        return " and ".join(parts) or "finite"

    def admitted(self, value: Any, xp: Any = np) -> Any:
        """Return whether each number keeps the rule, by NumPy or (if traced) ``jax.numpy``."""
        admitted = xp.isfinite(value)
        if self.at_least is not None:
            admitted &= value >= self.at_least
        if self.above is not None:
            admitted &= value > self.above
        if self.at_most is not None:
            admitted &= value <= self.at_most
        return admitted


def number(
    *,
    default: Any,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    optional: bool = False,
) -> Any:
    """A traced float with bounds; if optional, None is another static structure, without it."""
    rule = Rule(at_least=at_least, above=above, at_most=at_most, optional=optional)
    return dataclasses.field(default=default, metadata={"rule": rule})


def static(
    *,
    default: Any,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] | None = None,
    optional: bool = False,
    kind: type | None = None,
) -> Any:
    """A compile-time constant: int, float, bool, str, or a tuple of int or float.

    ``kind`` is the type of the value, or of a tuple's entries; by default that of the default, so
    it is needed only where the default is None (``optional``).
    """
    if default is None and kind is None:
        raise TypeError("a static field whose default is None needs its kind")
    sample = default[0] if isinstance(default, tuple) and default else default
    rule = Rule(at_least, above, at_most, choices, optional, kind or type(sample))
    return dataclasses.field(default=default, metadata={"pytree_node": False, "rule": rule})


def node(*, factory: Callable[[], Any], of: type, optional: bool = False) -> Any:
    """A nested config of class ``of``, ``factory()`` by default."""
    rule = Rule(optional=optional, kind=of)
    return dataclasses.field(default_factory=factory, metadata={"rule": rule, "node": True})


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(number, static, node)
)
class PyTree:
    """A subclass is a frozen, keyword-only dataclass and a pytree; static fields are not leaves.

    Registered as a custom node on purpose. With ``jax.tree_util.register_dataclass`` (and so with
    ``flax.struct``) JAX 0.10 and 0.12 call the structures of two different classes with equal
    fields equal, and ``jit`` may then run the code of the one for the other.
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        members = dataclasses.fields(cls)  # type: ignore[arg-type]
        leaves = [field.name for field in members if not is_static(field)]
        fixed = [field.name for field in members if is_static(field)]
        custom = [each for each in cls.__mro__[:-1] if not is_ours(each)]

        def flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
            aux = [getattr(tree, name) for name in fixed]
            return [getattr(tree, name) for name in leaves], (*aux, _attributes(custom))

        def flatten_with_keys(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
            children, aux = flatten(tree)
            return list(zip(map(GetAttrKey, leaves), children, strict=True)), aux

        def unflatten(aux: tuple[Any, ...], children: Any) -> Any:
            tree = object.__new__(cls)
            for name, value in zip([*leaves, *fixed], [*children, *aux[:-1]], strict=True):
                object.__setattr__(tree, name, value)
            return tree

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def _attributes(custom: list[type]) -> tuple[Any, ...]:
    """Return the attributes of custom classes outside of their fields, as a part of the structure.

    When a class attribute has changed, programs compiled with the old one are not reused.
    """
    return tuple(
        (name, _fixed(value))
        for each in custom
        for name, value in vars(each).items()
        if not name.startswith("__")
    )


def _fixed(value: Any) -> Any:
    """Return something hashable that changes with a value."""
    if isinstance(value, list | tuple):
        return type(value), *map(_fixed, value)
    if isinstance(value, dict):
        return dict, *((key, _fixed(entry)) for key, entry in value.items())
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer):
        array = np.asarray(value)
        return array.shape, str(array.dtype), array.tobytes()
    return value if isinstance(value, Hashable) else id(value)


class Sizes(NamedTuple):
    """What the rules of a part may need to know of the whole.

    Attributes:
      num_clients: K.
      num_selected: m, as configured.
      cohort_size: clients that the policy chooses a round; K for the policy ``all``.
    """

    num_clients: int
    num_selected: int
    cohort_size: int


class Config(PyTree):
    """Base of every config. ``config.replace(field=value)`` returns a changed copy."""

    # `name` is how a file and the command line call this choice; `summary` is one line of help.
    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __post_init__(self) -> None:
        # Convert NumPy scalars: files and checks need Python numbers. JAX rebuilds configs without
        # calling the class.
        for field in dataclasses.fields(self):
            if is_static(field) and field.metadata["rule"].kind is not object:
                object.__setattr__(self, field.name, _plain(getattr(self, field.name)))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed fields. Raises ConfigError for an unknown field."""
        for name in changes:
            field_at(self, name)
        return super().replace(**changes)

    def check(self, path: str, sizes: Sizes) -> None:
        """Check rules that involve more than one field. Raises :class:`ConfigError`."""

    def override(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with fields changed by path: ``config.override({"reward.gamma": 0.0})``.

        Raises:
          ConfigError: for a path that does not exist, with the fields that do.
        """
        if not isinstance(changes, Mapping):
            raise ConfigError(f"override({changes!r}): must be values by path, a dict.")
        config = self
        for path, value in changes.items():
            field_at(config, path)
            config = _override(config, path, value)
        return config


def _plain(value: Any) -> Any:
    """Return NumPy scalars, also those in a tuple, as Python numbers."""
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _override(config: Any, path: str, value: Any) -> Any:
    head, _, rest = path.partition(".")
    if rest:
        value = _override(getattr(config, head), rest, value)
    return config.replace(**{head: value})


def field_at(config: Config, path: str) -> dataclasses.Field[Any]:
    """Return the field at a dotted path.

    Raises:
      ConfigError: if there is none, with the known fields.
    """
    part: Any = config
    above = ""
    field: Any = None
    for name in str(path).split("."):
        if part is None:
            raise ConfigError(f"{path}: {above} is none. Choose one first: {above}=NAME.")
        known = {f.name: f for f in dataclasses.fields(part)} if isinstance(part, Config) else {}
        if name not in known:
            raise ConfigError(f"{path}: {no_field(name, part, above, config)}")
        part = getattr(part, name)
        field = known[name]
        above = f"{above}.{name}" if above else name
    return field


def fields(config: Config) -> Iterator[tuple[str, Any, Rule, dataclasses.Field[Any]]]:
    """Yield (name, value, rule, dataclass field) of every field of a config."""
    for field in dataclasses.fields(config):
        yield field.name, getattr(config, field.name), field.metadata.get("rule", Rule()), field


def is_node(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field holds a nested config."""
    return bool(field.metadata.get("node", False))


def is_static(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field is a compile-time constant."""
    return not field.metadata.get("pytree_node", True)


def nested(config: Config, path: str = "") -> Iterator[tuple[str, Config]]:
    """Yield (dotted path, config) for a config and every config below it."""
    yield path, config
    for name, value, _, field in fields(config):
        if is_node(field) and isinstance(value, Config):
            yield from nested(value, f"{path}.{name}" if path else name)


def no_field(name: str, part: Any, path: str, whole: Config) -> str:
    """Return the message for an unknown field of ``part``: a suggestion, and the known fields.

    ``path`` is the part's dotted path in ``whole``, in which the field may be elsewhere; empty for
    the whole itself.
    """
    known = [field.name for field in dataclasses.fields(part)] if isinstance(part, Config) else []
    trees = [(part, path), (whole, "")] if known else []
    elsewhere = [
        f"{where}.{name}" if where else name
        for tree, prefix in trees
        for where, config in nested(tree, prefix)
        if name in {field.name for field in dataclasses.fields(config)}
    ]
    suggestion = f" Did you mean {elsewhere[0]!r}?" if elsewhere else nearest(name, known)
    return (
        f"there is no field {shown(name)} in {type(part).__name__}.{suggestion} It has "
        f"{', '.join(known) or 'no fields'}."
    )
