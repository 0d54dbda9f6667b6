"""Configuration dataclasses: frozen, keyword-only JAX pytrees with a validation rule per field.

Fields come in three kinds:

* ``number(...)``: a traced float, which can be swept or vmapped without recompilation.
* ``static(...)``: a compile-time constant. A new value usually triggers recompilation.
* ``node(...)``: a nested config.

``pause_jax.base.checks`` validates fields when a run starts. The constructor cannot validate them,
because some rules need the whole config, and values may be tracers under ``jit``. JAX also rebuilds
configs without calling the constructor.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from pause_jax.base.spelling import nearest, one_line, shown

# Maximum number of characters in a message. Messages may quote the contents of files.
_LONGEST = 2000


class ConfigError(ValueError):
    """Error for an invalid config. The one-line message states the value, the rule and a fix."""

    def __init__(self, message: str):
        line = one_line(message)
        if len(line) > _LONGEST:
            line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
        super().__init__(line)


@contextlib.contextmanager
def prefixed(what: object) -> Iterator[None]:
    """Prefix the message of a ConfigError raised in the block, for example with a file name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None


def is_ours(part: Any) -> bool:
    """Return whether a class or function belongs to this library."""
    return str(getattr(part, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


class Rule(NamedTuple):
    """Constraint on a field's value. Bounds that are ``None`` are not checked."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] | None = None
    optional: bool = False
    kind: type | None = None

    def describe(self) -> str:
        """Return the rule in words, for messages and help texts."""
        if self.choices is not None:
            return "one of " + ", ".join(self.choices)
        parts = [
            f"{word} {bound if isinstance(bound, int) else f'{bound:g}'}"
            for word, bound in ((">=", self.at_least), (">", self.above), ("<=", self.at_most))
            if bound is not None
        ]
        return " and ".join(parts) or "finite"

    def admitted(self, value: Any, xp: Any = np) -> Any:
        """Return whether each number is finite and in bounds. Pass ``xp=jax.numpy`` for tracers."""
        admitted = xp.isfinite(value)
        if self.at_least is not None:
            admitted &= value >= self.at_least
        if self.above is not None:
            admitted &= value > self.above
        if self.at_most is not None:
            admitted &= value <= self.at_most
        return admitted


def number(*, default: Any, **rule: Any) -> Any:
    """Declare a traced float. ``rule`` is passed to :class:`Rule`.

    In an optional field, None removes the leaf from the pytree.
    """
    return dataclasses.field(default=default, metadata={"rule": Rule(**rule)})


def static(*, default: Any, kind: type | None = None, **rule: Any) -> Any:
    """Declare a compile-time constant, such as an int, a string or a tuple of floats.

    ``kind`` is the type of the value or of a tuple's entries. It is inferred from ``default``, but
    must be set if ``default`` is None. ``rule`` is passed to :class:`Rule`.
    """
    if default is None and kind is None:
        raise TypeError("static(default=None): must also set kind")
    sample = default[0] if isinstance(default, tuple) and default else default
    metadata = {"pytree_node": False, "rule": Rule(**rule, kind=kind or type(sample))}
    return dataclasses.field(default=default, metadata=metadata)


def node(*, factory: Callable[[], Any], of: type, optional: bool = False) -> Any:
    """Declare a nested config of class ``of``, with ``factory()`` as its default."""
    rule = Rule(optional=optional, kind=of)
    return dataclasses.field(default_factory=factory, metadata={"rule": rule, "node": True})


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(number, static, node)
)
class PyTree:
    """Base class for frozen, keyword-only dataclasses that are pytrees.

    Subclasses are registered as custom nodes, because ``jax.tree_util.register_dataclass`` (used by
    ``flax.struct``) gives different classes with equal fields the same tree structure in JAX 0.10
    and 0.12. ``jit`` could then run the code of the wrong class.
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        members = dataclasses.fields(cls)  # type: ignore[arg-type]
        leaves = [field.name for field in members if not is_static(field)]
        fixed = [field.name for field in members if is_static(field)]
        custom = [each for each in cls.__mro__[:-1] if not is_ours(each)]

        def flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
            children = [(GetAttrKey(name), getattr(tree, name)) for name in leaves]
            return children, (*(getattr(tree, name) for name in fixed), _attributes(custom))

        def unflatten(aux: tuple[Any, ...], children: Any) -> Any:
            tree = object.__new__(cls)
            for name, value in zip([*leaves, *fixed], [*children, *aux[:-1]], strict=True):
                object.__setattr__(tree, name, value)
            return tree

        jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with modified fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def _attributes(custom: list[type]) -> tuple[Any, ...]:
    """Return the class attributes of custom classes in hashable form.

    The tree structure includes the class attributes, so JAX recompiles if one of them changes.
    """
    return tuple(
        (name, _fixed(value))
        for each in custom
        for name, value in vars(each).items()
        if not name.startswith("__")
    )


def _fixed(value: Any) -> Any:
    """Return a hashable key for a value, based on the content of containers and arrays."""
    if isinstance(value, list | tuple):
        return type(value), *map(_fixed, value)
    if isinstance(value, dict):
        return dict, *((key, _fixed(entry)) for key, entry in value.items())
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer):
        array = np.asarray(value)
        return array.shape, str(array.dtype), array.tobytes()
    return value if isinstance(value, Hashable) else id(value)


class Sizes(NamedTuple):
    """Simulation sizes passed to the ``check`` method of each nested config.

    Attributes:
      num_clients: K, number of clients.
      num_selected: number of clients to select at a time (m unless ``clock.open_slots`` is set).
      cohort_size: actual number of clients selected at a time (K for the ``all`` policy).
    """

    num_clients: int
    num_selected: int
    cohort_size: int


class Config(PyTree):
    """Base class for all configs. ``config.replace(field=value)`` returns a modified copy."""

    # `name` identifies the class in files and commands, and `summary` describes it in help texts.
    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __post_init__(self) -> None:
        # Convert NumPy scalars, because files and checks need Python numbers.
        for field in dataclasses.fields(self):
            if is_static(field) and field.metadata["rule"].kind is not object:
                object.__setattr__(self, field.name, _plain(getattr(self, field.name)))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with modified fields. Raise ConfigError if a field is unknown."""
        for name in changes:
            field_at(self, name)
        return super().replace(**changes)

    def check(self, path: str, sizes: Sizes) -> None:
        """Raise :class:`ConfigError` if a rule involving several fields or sizes is violated."""

    def override(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with new values at dotted paths: ``override({"reward.gamma": 0.0})``.

        Raises:
          ConfigError: if ``changes`` is not a mapping, or a path is unknown.
        """
        if not isinstance(changes, Mapping):
            raise ConfigError(f"override({changes!r}): must be a dict of values keyed by path.")
        config = self
        for path, value in changes.items():
            field_at(config, path)
            config = _override(config, path, value)
        return config


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar, or the NumPy scalars in a tuple, to Python numbers."""
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _override(config: Any, path: str, value: Any) -> Any:
    head, _, rest = path.partition(".")
    if rest:
        value = _override(getattr(config, head), rest, value)
    return config.replace(**{head: value})


def field_at(config: Config, path: str) -> dataclasses.Field[Any]:
    """Return the field at a dotted path. Raise ConfigError if the path is unknown."""
    part: Any = config
    above = ""
    field: Any = None
    for name in str(path).split("."):
        if part is None:
            raise ConfigError(f"{path}: {above} is none. Set {above}=NAME first.")
        known = {f.name: f for f in dataclasses.fields(part)} if isinstance(part, Config) else {}
        if name not in known:
            raise ConfigError(f"{path}: {no_field(name, part, above, config)}")
        part = getattr(part, name)
        field = known[name]
        above = f"{above}.{name}" if above else name
    return field


def fields(config: Config) -> Iterator[tuple[str, Any, Rule, dataclasses.Field[Any]]]:
    """Yield (name, value, rule, dataclass field) for every field of a config."""
    for field in dataclasses.fields(config):
        yield field.name, getattr(config, field.name), field.metadata.get("rule", Rule()), field


def is_node(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field holds a nested config."""
    return bool(field.metadata.get("node", False))


def is_static(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field is a compile-time constant."""
    return not field.metadata.get("pytree_node", True)


def nested(config: Config, path: str = "") -> Iterator[tuple[str, Config]]:
    """Yield (dotted path, config) for a config and every nested config."""
    yield path, config
    for name, value, _, field in fields(config):
        if is_node(field) and isinstance(value, Config):
            yield from nested(value, f"{path}.{name}" if path else name)


def no_field(name: str, part: Any, path: str, whole: Config) -> str:
    """Return the message for an unknown field of ``part``, with a suggestion and the known fields.

    ``path`` is the dotted path of ``part`` in ``whole`` (empty if they are the same config). The
    suggestion may be a field elsewhere in ``whole``.
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
        f"{type(part).__name__} has no field {shown(name)}.{suggestion} Its fields: "
        f"{', '.join(known) or 'none'}."
    )
