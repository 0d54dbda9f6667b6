"""What made a result: code, versions, machine. Where one of them changes, its bits may."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pathlib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from types import CodeType
from typing import Any

import jax
import numpy as np

from pause_jax.config import SimConfig
from pause_jax.engine.quantities import QUANTITIES
from pause_jax.engine.quantity import Quantity
from pause_jax.struct import fields, nested

_PACKAGE = pathlib.Path(__file__).parents[1]
# Packages whose version may change a result's bits.
_PACKAGES = ("pause_jax", "jax", "jaxlib", "flax", "optax", "numpy")


def versions() -> dict[str, str]:
    """Versions of what computes a result."""
    return {package: metadata.version(package) for package in _PACKAGES}


@functools.cache
def code() -> str:
    """SHA-256 of the library's own files: a checkout changes where its version does not."""
    content = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in (".py", ".csv"):
            content.update(str(path.relative_to(_PACKAGE)).encode() + path.read_bytes())
    return content.hexdigest()


def machine(devices: Iterable[jax.Device]) -> dict[str, Any]:
    """On what a result is computed, as far as its bits may show it."""
    several = list(devices)
    return {
        "platform": several[0].platform,
        "device": several[0].device_kind,
        "devices": len(several),
        "x64": bool(jax.config.values["jax_enable_x64"]),
        "matmul_precision": str(jax.config.values["jax_default_matmul_precision"]),
    }


def data_digest(data: Any) -> str:
    """SHA-256 of a data set, empty without one."""
    if hasattr(data, "digest"):
        return str(data.digest)
    content = hashlib.sha256()
    leaves = jax.tree.leaves(data)
    for leaf in leaves:
        content.update(np.ascontiguousarray(leaf).tobytes())
    return content.hexdigest() if leaves else ""


def own_code(configs: Iterable[SimConfig], quantities: Iterable[Quantity]) -> dict[str, str]:
    """SHA-256 of what a user wrote of a sweep, by name: the whole file, where there is one."""
    theirs = {_name(part): part for part in _parts(configs, quantities)}
    return {name: _digest(part) for name, part in sorted(theirs.items())}


def _parts(configs: Iterable[SimConfig], quantities: Iterable[Quantity]) -> Iterator[Any]:
    for config in configs:
        for _, part in nested(config):
            if not _is_ours(type(part)):
                yield type(part)
            for _, value, _, _ in fields(part):
                if callable(value) and not _is_ours(value):
                    yield value
    yield from (
        q.value for q in quantities if QUANTITIES.get(q.name) != q and not _is_ours(q.value)
    )


def _is_ours(part: Any) -> bool:
    return str(getattr(part, "__module__", "")).partition(".")[0] == _PACKAGE.name


def _name(part: Any) -> str:
    return f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', type(part).__name__)}"


def _digest(part: Any) -> str:
    codes = list(_codes(part))
    files = {pathlib.Path(code.co_filename) for code in codes}
    content = hashlib.sha256()
    for file in sorted(files):
        if file.is_file():
            content.update(file.read_bytes())
    if not any(file.is_file() for file in files):  # written in a notebook
        for each in codes:
            content.update(repr(_told(each)).encode())
    return content.hexdigest()


def _codes(part: Any) -> Iterator[CodeType]:
    part = inspect.unwrap(part) if isinstance(part, Callable) else part  # type: ignore[arg-type]
    if isinstance(part, functools.partial):
        part = part.func
    members = vars(part).values() if inspect.isclass(part) else [part]
    for member in members:
        member = getattr(member, "__func__", getattr(member, "fget", member))
        if hasattr(member, "__code__"):
            yield member.__code__


def _told(code: CodeType) -> tuple[Any, ...]:
    """What a function does, wherever it stands."""
    constants = [
        _told(each) if isinstance(each, CodeType) else repr(each)
        for each in code.co_consts
        if not isinstance(each, frozenset)
    ]
    return code.co_code, code.co_names, constants
