"""Validation of config fields against their declared rules."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from pause_jax.base.spelling import shown
from pause_jax.base.struct import (
    Config,
    ConfigError,
    Rule,
    fields,
    is_node,
    is_static,
    nested,
)


def check_fields(config: Config) -> None:
    """Validate every field of a config tree against its rule.

    Raises:
      ConfigError: if a field violates its rule. Under ``vmap``, the rule must hold in every run.
        Values traced by ``jit`` are unknown here, so :func:`marked` checks them.
    """
    for path, part in nested(config):
        for name, value, rule, field in fields(part):
            if value is None and rule.optional:
                continue
            if is_node(field):
                violated = _violated_by_node(value, rule, field.default_factory)
            elif is_static(field):
                violated = _violated_by_static(value, rule, field.default)
            else:
                violated = _violated_by_number(value, rule)
            if violated:
                where = f"{path}.{name}" if path else name
                raise ConfigError(f"{where} = {shown(behind(value))}: must be {violated}.")


def _violated_by_node(value: Any, rule: Rule, factory: Any) -> str:
    assert rule.kind is not None
    if isinstance(value, rule.kind):
        return ""
    example = factory if isinstance(factory, type) else [*rule.kind.__subclasses__(), rule.kind][0]
    return (
        f"a config object of class {rule.kind.__name__}, such as {example.__name__}(). Only "
        "presets and config files accept names"
    )


def marked(config: Any) -> Any:
    """Return the config with NaN in place of traced numbers that violate their rules.

    Code under ``jit`` cannot raise errors for traced values. NaN marks the results as invalid.
    """
    changes = {}
    for path, part in nested(config):
        for name, value, rule, field in fields(part):
            if isinstance(value, jax.core.Tracer) and not (is_node(field) or is_static(field)):
                value = jnp.asarray(value, jnp.float32)
                admitted = jnp.where(rule.admitted(value, jnp), value, jnp.nan)
                changes[f"{path}.{name}" if path else name] = admitted
    return config.override(changes)


def _violated_by_number(value: Any, rule: Rule) -> str:
    bounds = " and ".join(dict.fromkeys(("finite", rule.describe())))
    if isinstance(value, jax.core.Tracer):
        value = behind(value)
        if isinstance(value, jax.core.Tracer) or rule.admitted(float32(value)).all():
            return ""
        return f"{bounds} in every run under vmap"
    try:
        array = np.asarray(value)
    except ValueError:  # ragged nested tuples
        array = np.asarray(None)
    if array.ndim and np.issubdtype(array.dtype, np.number):
        return "a single number. To vary it, use sweep(configs, keys) or vmap over stack(configs)"
    real = not array.ndim and np.issubdtype(array.dtype, np.number) and np.isrealobj(array)
    return "" if real and rule.admitted(float32(array)) else f"a float32 number, {bounds}"


def behind(value: Any) -> Any:
    """Return the concrete array inside ``vmap`` tracers, or ``value`` if there is no such array."""
    inner = value
    while isinstance(inner, jax.core.Tracer):
        inner = getattr(inner, "val", None)
    return inner if isinstance(inner, jax.Array | np.ndarray) else value


def float32(value: Any) -> NDArray[np.float32]:
    """Convert a number, a numeric string or an array to float32, the precision of simulations.

    Overflow yields infinity, underflow yields 0, and an invalid value yields NaN.
    """
    try:
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(value).astype(np.float32)
    except (TypeError, ValueError, OverflowError):
        return np.asarray(np.nan, np.float32)


def float32_number(value: Any) -> float:
    """Round a scalar or a numeric string to float32. Return NaN for any other value."""
    array = float32(value)
    return float(array) if array.shape == () else math.nan


def _violated_by_static(value: Any, rule: Rule, default: Any) -> str:
    if rule.kind is object:  # validated by the config's `check`
        return "set" if value is None else ""
    if rule.choices is not None:
        return "" if isinstance(value, str) and value in rule.choices else rule.describe()
    several = isinstance(default, tuple)
    kinds = (int, float) if rule.kind is float else (rule.kind or object,)
    entries = value if several and isinstance(value, tuple) else (value,)
    # Exclude bools explicitly, because bool is a subclass of int.
    right_kind = several == isinstance(value, tuple) and all(
        isinstance(entry, kinds) and isinstance(entry, bool) == (rule.kind is bool)
        for entry in entries
    )
    if rule.kind in (int, float):
        words = "whole number" if rule.kind is int else "number"
        words = f"tuple of {words}s" if several else words
        # NumPy stores integers beyond 64 bits as objects, for which isfinite raises TypeError.
        known = [entry if abs(entry) < 2**63 else math.inf for entry in entries if right_kind]
        if not right_kind or not all(rule.admitted(entry) for entry in known):
            return f"a {words}, {rule.describe()}"
        # Loop counters, shapes and indices are int32.
        too_large = rule.kind is int and any(abs(entry) >= 2**31 for entry in entries)
        return f"a {words} below 2^31" if too_large else ""
    if right_kind and not (isinstance(value, str) and "\0" in value):  # invalid in file names
        return ""
    rules = {bool: "True or False", str: "a string without NUL"}
    return rules.get(rule.kind or object, "a constant")
