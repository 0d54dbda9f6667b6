"""Provenance of a result: the configs, code, package versions and machine that determine it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax import Array

from pause_jax.base.spelling import shortest
from pause_jax.base.struct import fields, is_node, is_ours, nested
from pause_jax.base.versions import version
from pause_jax.config import SimConfig
from pause_jax.run.driver import traced_run
from pause_jax.run.record.result import Quantities

_PACKAGE = pathlib.Path(__file__).parents[1]
# Packages whose versions can affect results.
_PACKAGES = ("pause_jax", "jax", "jaxlib", "flax", "optax", "numpy")
# JAX settings that can affect results.
_SETTINGS = {
    "x64": "jax_enable_x64",
    "matmul_precision": "jax_default_matmul_precision",
    "threefry_partitionable": "jax_threefry_partitionable",
    "disable_jit": "jax_disable_jit",
}


def describe_config(config: SimConfig) -> dict[str, Any]:
    """Return a config's field values and the names of its nested configs, keyed by path."""
    described = {}
    for path, part in nested(config):
        if path and part.name:
            described[path] = part.name
        for name, value, _, field in fields(part):
            if not is_node(field):
                described[f"{path}.{name}" if path else name] = _plain(value)
    return described


def _plain(value: Any) -> Any:
    """Convert a value to a number, None or a string."""
    if isinstance(value, jax.Array | np.ndarray):
        return shortest(value)
    if value is None or isinstance(value, int | float):
        return value
    # Remove memory addresses, which differ between processes.
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def data_digest(data: Any) -> str:
    """Return the SHA-256 of a data set, or an empty string for a run without data."""
    if hasattr(data, "digest"):
        return str(data.digest)
    content = hashlib.sha256()
    leaves = jax.tree.leaves(data)
    for leaf in leaves:
        content.update(np.ascontiguousarray(leaf).tobytes())
    return content.hexdigest() if leaves else ""


def versions() -> dict[str, str]:
    """Return the installed version of each package that can affect results."""
    return {package: version(package) for package in _PACKAGES}


@functools.cache
def code() -> str:
    """Return the SHA-256 of the library's code and tables, to detect changes within a version."""
    content = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in (".py", ".csv"):
            content.update(str(path.relative_to(_PACKAGE)).encode() + path.read_bytes())
    return content.hexdigest()


def machine(devices: Iterable[jax.Device]) -> dict[str, Any]:
    """Return the platform, type and number of devices."""
    several = list(devices)
    return {
        "platform": several[0].platform,
        "device": several[0].device_kind,
        "devices": len(several),
    }


def settings() -> dict[str, Any]:
    """Return the JAX settings that can affect results."""
    return {name: jax.config.values[setting] for name, setting in _SETTINGS.items()}


def custom_parts(config: SimConfig, quantities: Quantities) -> dict[str, Any]:
    """Return a run's custom classes, quantities and field values, keyed by name."""
    parts: dict[str, Any] = {}
    for path, part in nested(config):
        if not is_ours(type(part)):
            parts[_name(type(part))] = type(part)
        for name, value, _, field in fields(part):
            if not (is_node(field) or _is_plain_data(value)):
                parts[f"{path}.{name}" if path else name] = value
    parts |= {_name(q.value): q.value for q in quantities if not is_ours(q.value)}
    return dict(sorted(parts.items()))


def _is_plain_data(value: Any) -> bool:
    """Return whether a value is plain data, as opposed to an object that may run code."""
    if isinstance(value, tuple):
        return all(map(_is_plain_data, value))
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | jax.Array)


def _name(part: Any) -> str:
    return f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', type(part).__name__)}"


def program_digest(config: SimConfig, data: Any, keys: Array, quantities: Quantities) -> str:
    """Return the SHA-256 of the lowered program of a run with custom components.

    The program is the same in every process. It contains all constants of the custom components,
    but not the code of Python callbacks. If the program has a callback, the digest also covers the
    source files of the custom components.
    """
    # Create a new partial to bypass JAX's trace cache, because constants may have changed.
    run = functools.partial(traced_run, quantities=quantities)
    lowered = jax.jit(run).lower(config, data, keys[0])
    program, result = lowered.as_text(), lowered.out_info
    content = [program, str((result.epsilon_unit, result.num_parameters, result.unnoised))]
    if "callback" in program:
        content += [_source(part) for part in custom_parts(config, quantities).values()]
    return hashlib.sha256("".join(content).encode()).hexdigest()


def _source(part: Any) -> str:
    """Return the source code of a component's module, or "" if the module has no source file."""
    try:
        return inspect.getsource(sys.modules[part.__module__])
    except (AttributeError, KeyError, OSError, TypeError):
        return ""


def fingerprint(made_by: Mapping[str, Any]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of ``made_by``."""
    text = json.dumps(made_by, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def different(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a description of each difference between the provenances of two sweeps."""
    words = []
    for name in {**before, **after}:
        was, now = before.get(name), after.get(name)
        if json.dumps(was) == json.dumps(now):  # compare as text, because NaN != NaN
            continue
        if name not in before or name not in after:
            words.append(f"{name} was {'removed' if name in before else 'added'}")
        elif name.startswith(("code", "the quantity")):
            words.append(f"{name} has changed")
        elif name.startswith(("data of", "the other keys")):
            words.append(f"{name} have changed")
        else:
            words.append(f"{name} = {now} (was {was})")
    return words
