"""Resolution of names in docstrings and signatures, as Python resolves them in their module.

A class is documented where it is defined, and any of its names may refer to it: ``Traces``,
``pause_jax.latency.Traces``. A name of another library is plain text, because the site needs no
network. For an unknown name Sphinx prints a warning.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import re
from collections.abc import Iterator
from typing import Any

from sphinx import addnodes
from sphinx.util.nodes import make_refnode

from tools.layers import PACKAGE, modules


@functools.cache
def imported(module: str) -> dict[str, str]:
    """Return the dotted origin of each name that a module imports, even if only for typing."""
    path = modules()[module]
    stub = path.with_suffix(".pyi")  # lists lazy names, relative to the package
    tree = ast.parse((stub if stub.is_file() else path).read_text("utf-8"))
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source = ".".join(filter(None, (module if node.level else "", node.module)))
            listed = [alias for alias in node.names if alias.name != "*"]
            found |= {a.asname or a.name: f"{source}.{a.name}" for a in listed}
            if len(listed) < len(node.names):
                everything = importlib.import_module(source).__all__
                found |= {name: f"{node.module}.{name}" for name in everything}
        elif isinstance(node, ast.Import):
            found |= {a.asname or a.name.partition(".")[0]: a.name for a in node.names}
    return found


def names(target: str, module: str | None, within: str | None) -> Iterator[str]:
    """Yield the full names that a reference may mean, nearest first."""
    if module in modules():
        if within:
            yield f"{module}.{within}.{target}"
        head, _, rest = target.partition(".")
        if head in imported(module):
            yield imported(module)[head] + (f".{rest}" if rest else "")
        yield f"{module}.{target}"
        while module := module.rpartition(".")[0]:
            yield f"{module}.{target}"
    yield target


def meaning(name: str) -> Any:
    """Return the object of a full name.

    Raises:
      LookupError: if the object does not exist.
    """
    above, _, last = name.rpartition(".")
    if not above:
        return _module(name)
    # A package may have another attribute with the name of one of its modules.
    for parent in (meaning, _module):
        try:
            return getattr(parent(above), last)
        except (AttributeError, LookupError):
            continue
    return _module(name)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise LookupError(name) from None


def canonical(name: str) -> str:
    """Return the name under which the object of a full name is defined.

    Raises:
      LookupError: if the object does not exist.
    """
    found = meaning(name)
    home, own = getattr(found, "__module__", None) or "", getattr(found, "__qualname__", "")
    if own and is_ours(home):
        return f"{home}.{own}"
    before = ""
    while before != name:  # `from pause_jax import bandit` in `pause_jax` leads to itself
        before = name
        module, _, last = name.rpartition(".")
        if module in modules():
            name = imported(module).get(last, name)
    return name


def is_ours(name: str) -> bool:
    """Return whether a full name starts with the name of the package."""
    return name.partition(".")[0] == PACKAGE.name


def full_name(node: Any) -> str:
    """Return the full name of a reference, or an empty text if Python cannot resolve it there."""
    target = node["reftarget"]
    for name in names(target, node.get("py:module"), node.get("py:class")):
        if not is_ours(name) and "." in name:
            return name
        try:
            where = canonical(name)
        except LookupError:
            continue
        if node["reftype"] == "mod" or where not in modules():
            return where
    return ""


def spell_out(app: Any, doctree: Any) -> None:
    """Replace the references of a page by full names, which leave Sphinx nothing to guess."""
    for node in doctree.findall(addnodes.pending_xref):
        if node.get("refdomain") == "py" and node["reftarget"].replace(".", "_").isidentifier():
            node["reftarget"] = full_name(node) or node["reftarget"]
            node["refspecific"] = False


def resolve(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Return the text or the link of a reference without a page, or None if it is unknown.

    A shape, a name of another library and an unexported name become text. A link requires that
    exactly one documented name ends in the target.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if not target.replace(".", "_").isidentifier() or hasattr(builtins, target):
        return contnode
    if ("." in target and not is_ours(target)) or target.rpartition(".")[2].startswith("_"):
        return contnode
    objects = env.get_domain("py").objects
    alike = [name for name in objects if name.endswith(f".{target}")]
    if len(alike) != 1:
        return contnode if _is_known(target) else None
    at = objects[alike[0]]
    return make_refnode(app.builder, node["refdoc"], at.docname, at.node_id, contnode, alike[0])


def _is_known(name: str) -> bool:
    """Return whether a full name of ours exists, or a module has a class of this name."""
    try:
        return (is_ours(name) and meaning(name) is not None) or name in _classes()
    except LookupError:
        return False


@functools.cache
def _classes() -> frozenset[str]:
    """Return the names of all top-level classes in the package."""
    trees = (ast.parse(path.read_text("utf-8")) for path in modules().values())
    return frozenset(n.name for tree in trees for n in tree.body if isinstance(n, ast.ClassDef))


def skip(app: Any, what: str, name: str, item: Any, skipped: bool, options: Any) -> bool | None:
    """Skip the fields of a NamedTuple, which its docstring documents."""
    return True if (getattr(item, "__doc__", "") or "").startswith("Alias for field") else None


def one_by_one(app: Any, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Split ``a, b: text`` in a section into two entries, because Sphinx accepts one name each."""
    place = 0
    while place < len(lines):
        several = re.match(r"(  +)(\w+(?:, \w+)+)(: .*)", lines[place])
        if several:
            indent, listed, text = several.groups()
            end = place + 1
            while end < len(lines) and lines[end].startswith(f"{indent} "):
                end += 1
            more = lines[place + 1 : end]
            new = [line for each in listed.split(", ") for line in (f"{indent}{each}{text}", *more)]
            lines[place:end] = new
            place += len(new)
        else:
            place += 1


def setup(app: Any) -> None:
    """Connect the functions of this module to Sphinx."""
    app.connect("autodoc-process-docstring", one_by_one, priority=1)  # before napoleon
    app.connect("doctree-read", spell_out)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-skip-member", skip)
