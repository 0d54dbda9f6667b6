"""What made a result: code, versions, machine. Where one of them changes, its bits may."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import pathlib
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from pause_jax.base.struct import fields, is_node, is_ours, nested
from pause_jax.base.versions import version
from pause_jax.config import SimConfig
from pause_jax.run.record.quantity import Quantity

_PACKAGE = pathlib.Path(__file__).parents[1]
# Packages whose version may change a result's bits.
_PACKAGES = ("pause_jax", "jax", "jaxlib", "flax", "optax", "numpy")
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def versions() -> dict[str, str]:
    """Versions of what computes a result."""
    return {package: version(package) for package in _PACKAGES}


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


def fingerprint(made_by: Mapping[str, Any]) -> str:
    """Sixteen letters that change with what a sweep's bits depend on."""
    text = json.dumps(_compared(made_by), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def different(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """In what two sweeps differ, in words; empty if they are the same."""
    there, here = _compared(old), _compared(new)
    words = []
    for name in dict.fromkeys([*there, *here]):
        was, now = there.get(name), here.get(name)
        if json.dumps(was) == json.dumps(now):  # NaN is itself there
            continue
        if name not in there or name not in here:
            words.append(f"{name} {'is there no more' if name in there else 'was not there'}")
        elif name.startswith(("code", "the quantity")):
            words.append(f"{name} has changed since")
        elif name.startswith(("data of", "the other keys")):
            words.append(f"{name} are others")
        else:
            words.append(f"{name} was {was}, is {now}")
    return words


def _compared(made_by: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared, one level deep, in the order of what a reader wants to know first."""
    flat: dict[str, Any] = {}
    for each in made_by["summaries"]:
        for path, value in each["fields"].items():
            # Where a file lies does not matter, once its content is known.
            if path.rpartition(".")[2] not in ("path", "data_dir"):
                flat[f"{path} of {each['label']!r}"] = value
        flat[f"data of {each['label']!r}"] = each["data"]
    for name, value in made_by.items():
        if name == "keys":
            flat["keys"] = f"{len(value)} seeds from {value[0]}"
            flat["the other keys"] = value
        elif name == "recorded":
            flat |= {f"the quantity {each['name']}": each for each in value}
        elif name == "own":
            flat |= {
                f"code or a constant of {each['parts']} in {each['label']!r}": each["digest"]
                for each in value
            }
        elif name == "code":
            flat["code of pause_jax"] = value
        elif isinstance(value, dict):
            flat |= value
        elif name != "summaries":
            flat[name] = value
    return flat


def data_digest(data: Any) -> str:
    """SHA-256 of a data set, empty without one."""
    if hasattr(data, "digest"):
        return str(data.digest)
    content = hashlib.sha256()
    leaves = jax.tree.leaves(data)
    for leaf in leaves:
        content.update(np.ascontiguousarray(leaf).tobytes())
    return content.hexdigest() if leaves else ""


def own_parts(config: SimConfig, quantities: Iterable[Quantity]) -> list[str]:
    """Names of the custom parts of a run: classes, quantities, and fields that hold objects."""
    parts = []
    for path, part in nested(config):
        if not is_ours(type(part)):
            parts.append(_name(type(part)))
        for name, value, _, field in fields(part):
            if not (is_node(field) or _is_plain(value)):
                parts.append(f"{path}.{name}" if path else name)
    functions = [q.value for q in quantities]
    return sorted({*parts, *(_name(each) for each in functions if not is_ours(each))})


def _is_plain(value: Any) -> bool:
    """Whether a value says by itself what it computes."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | jax.Array)


def _name(part: Any) -> str:
    return f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', type(part).__name__)}"


def program_digest(program: core.ClosedJaxpr) -> str:
    """SHA-256 of a traced program: its operations in their order, and the bytes of its constants.

    The same in every process. What a Python callback computes is not in a trace: of a callback
    its file counts, and the variables that it reads from outside.
    """
    return _hash(_Text().of(program))


def without_addresses(text: str) -> str:
    """A text without places in memory, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


class _Text:
    """Texts of what programs consist of; a program within others is read once."""

    def __init__(self) -> None:
        # With the objects, so that no other one gets their place in memory.
        self._programs: dict[int, tuple[core.Jaxpr, str]] = {}
        self._functions: set[CodeType] = set()

    def of(self, value: Any) -> str:
        if isinstance(value, core.ClosedJaxpr):
            return f"{self._program(value.jaxpr)} {self.of(value.consts)}"
        if isinstance(value, core.Jaxpr):
            return self._program(value)
        if hasattr(value, "callback_func"):
            return self._function(value.callback_func)
        if isinstance(value, tuple | list):
            return f"({', '.join(map(self.of, value))})"
        if isinstance(value, set | frozenset):
            return f"({', '.join(sorted(map(self.of, value)))})"
        if isinstance(value, Mapping):
            return self.of(sorted((str(key), self.of(each)) for key, each in value.items()))
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"{value.dtype} {self.of(jax.random.key_data(value))}"
        if hasattr(value, "__array__") and not inspect.isclass(value):
            array = np.asarray(value)
            return f"{array.dtype} {array.shape} {_hash(array.tobytes())}"
        return without_addresses(repr(value))

    def _program(self, jaxpr: core.Jaxpr) -> str:
        if id(jaxpr) not in self._programs:
            self._programs[id(jaxpr)] = jaxpr, _hash("\n".join(self._lines(jaxpr)))
        return self._programs[id(jaxpr)][1]

    def _lines(self, jaxpr: core.Jaxpr) -> Iterator[str]:
        numbers: dict[Any, int] = {}

        def names(atoms: Iterable[Any]) -> str:
            each = (
                self.of(atom.val)
                if isinstance(atom, core.Literal)
                else f"{numbers.setdefault(atom, len(numbers))}: {atom.aval}"
                for atom in atoms
            )
            return ", ".join(each)

        yield names([*jaxpr.constvars, *jaxpr.invars])
        for eqn in jaxpr.eqns:
            inputs, outputs = names(eqn.invars), names(eqn.outvars)
            yield f"{outputs} = {eqn.primitive} {self.of(eqn.params)} {inputs}"
        yield names(jaxpr.outvars)

    def _function(self, function: Any) -> str:
        """What is known of a Python function: its file, and what it reads from outside."""
        if isinstance(function, functools.partial):
            return self.of((self._function(function.func), function.args, function.keywords))
        function = inspect.unwrap(getattr(function, "__func__", function))
        if is_ours(function) or not inspect.isfunction(function):
            return without_addresses(repr(function))
        code = function.__code__
        file = pathlib.Path(code.co_filename)
        if code in self._functions or str(file).startswith(_INSTALLED):
            return function.__qualname__
        self._functions.add(code)
        source = file.read_bytes() if file.is_file() else repr(_told(code))  # of a notebook
        read = inspect.getclosurevars(function)
        values = {
            name: self._function(value) if callable(value) else self.of(value)
            for name, value in {**read.globals, **read.nonlocals}.items()
            if callable(value) or _is_plain(value)
        }
        return f"{_hash(source)} {self.of((function.__defaults__, values))}"


def _told(code: CodeType) -> tuple[Any, ...]:
    """What a function does, wherever it stands."""
    constants = [
        _told(each) if isinstance(each, CodeType) else repr(each)
        for each in code.co_consts
        if not isinstance(each, frozenset)
    ]
    return code.co_code, code.co_names, constants
