"""Generator of the site's reference, galleries and help pages.

    docs/api/           one page per folder of the package, with the names in each ``__all__``
    docs/gallery/       one card per named policy and per notebook
    docs/command_line/  help of each command

Every build of the site regenerates these pages. They are not committed.
"""

from __future__ import annotations

import ast
import base64
import functools
import importlib
import inspect
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import typer.testing
from sphinx.errors import SphinxError
from sphinx.util import logging

from pause_jax.cli import program
from pause_jax.run.record.quantity import Quantity
from pause_jax.run.record.result import described
from tools import policy_gallery
from tools.cross_references import canonical
from tools.layers import PACKAGE, ROOT, folder_of, folders, modules

DOCS = ROOT / "docs"
# Modules of the program, which its help describes.
WITHOUT = ("pause_jax.cli", "pause_jax.__main__")


class Symbol(NamedTuple):
    """Definition of a public name in a module.

    Attributes:
      kind: directive of Sphinx.
      name: full name.
      text: documentation, if Sphinx does not find it.
    """

    kind: str
    name: str
    text: str = ""


@functools.cache
def promised() -> dict[str, str]:
    """Map each full name in an ``__all__`` to the name under which it is defined."""
    return {
        f"{module}.{name}": canonical(f"{module}.{name}")
        for module in modules()
        if not module.startswith(WITHOUT) and not any(p.startswith("_") for p in module.split("."))
        for name in _exported(module)
    }


def _exported(module: str) -> Sequence[str]:
    """Return the ``__all__`` of a module."""
    try:
        return getattr(importlib.import_module(module), "__all__", ())
    except ImportError:
        # Flower is not installed; ``conf.py`` mocks it.
        if "flower" not in module:
            raise
        return ()


def public_modules() -> list[str]:
    """Return the modules in the reference: an ``__all__`` names them or one of their objects."""
    where = set(promised().values())
    named = {full.rpartition(".")[0] for full in (*promised(), *where)} | where
    return [module for module in modules() if module in named]


def defined_in(module: str) -> Iterator[Symbol]:
    """Yield the public top-level definitions of a module, and its recorded quantities."""
    source, public = modules()[module].read_text("utf-8"), set(promised().values())
    for node in ast.parse(source).body:
        names = [node] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
        assigned = node.targets if isinstance(node, ast.Assign) else []
        assigned = [node.target] if isinstance(node, ast.AnnAssign) else assigned
        for name in (
            *(n.name for n in names),
            *(t.id for t in assigned if isinstance(t, ast.Name)),
        ):
            value = getattr(importlib.import_module(module), name, None)
            if isinstance(value, Quantity):
                yield Symbol("py:data", f"{module}.{name}", inspect.cleandoc(described(value)[2:]))
            elif f"{module}.{name}" not in public:
                continue
            elif not names:
                text = _comment_above(source.splitlines(), node.lineno - 1)
                yield Symbol("py:data", f"{module}.{name}", text)
            elif isinstance(value, type):
                error = issubclass(value, BaseException)
                yield Symbol("autoexception" if error else "autoclass", f"{module}.{name}")
            else:
                yield Symbol("autofunction", f"{module}.{name}")


def _comment_above(lines: list[str], place: int) -> str:
    """Return the comment that ends on the line before ``place``, escaped."""
    found: list[str] = []
    while place and lines[place - 1].startswith("# "):
        place -= 1
        found.insert(0, lines[place].removeprefix("# "))
    return re.sub(r"([*`|_\\])", r"\\\1", " ".join(found))


def check_promises(app: Any, env: Any) -> None:
    """Warn about names in an ``__all__`` that no page documents."""
    documented = env.get_domain("py").objects
    for name, where in promised().items():
        if where not in documented:
            logging.getLogger(__name__).warning("%s, defined as %s, is not documented", name, where)


def fetched(html: str) -> list[str]:
    """Return the HTML tags of a page that load from the network."""
    return re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*=[\"'](?:https?:)?//[^>]*>", html)


def check_offline(app: Any, error: Exception | None) -> None:
    """Raise an error if a page of the site loads from the network.

    Raises:
      SphinxError: naming the first such page.
    """
    for path in sorted(Path(app.outdir).rglob("*.html")) if error is None else ():
        if loaded := fetched(path.read_text("utf-8")):
            raise SphinxError(f"{path.relative_to(app.outdir)} loads {loaded[0]}")


def folder_page(folder_name: str) -> str:
    """Return the reference page of a folder or the top-level package, in reStructuredText."""
    names = [name for name in public_modules() if folder_of(name) == folder_name]
    title = f"{PACKAGE.name}.{folder_name}" if folder_name else PACKAGE.name
    parts = [title, "=" * len(title), ""]
    exported = {full: where for full, where in promised().items() if full.startswith(f"{title}.")}
    for module in names:
        if module != title:
            parts += [module, "-" * len(module), ""]
        parts += [f".. automodule:: {module}", ""]
        own = {symbol.name: symbol for symbol in defined_in(module)}
        listed = [f for f in exported if f.rpartition(".")[0] == module and exported[f] not in own]
        if listed:
            links = ", ".join(_link(full, exported[full]) for full in listed)
            parts += [f"Re-exports: {links}.", ""]
        for symbol in own.values():
            # Sphinx prefixes the name of data with the module.
            name = symbol.name.rpartition(".")[2] if symbol.kind == "py:data" else symbol.name
            parts += [f".. {symbol.kind}:: {name}"]
            if symbol.kind in ("autoclass", "autoexception"):
                parts += ["   :members:", "   :show-inheritance:"]
            if symbol.text:
                parts += ["", *(f"   {line}" for line in symbol.text.splitlines())]
            parts += [""]
    return "\n".join(parts)


def _link(full: str, where: str) -> str:
    role = "mod" if where in modules() else "obj"
    return f":py:{role}:`{full.rpartition('.')[2]} <{where}>`"


def help_page() -> str:
    """Return the page with the help of the program and of each command."""
    runner = typer.testing.CliRunner(env={"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"})
    parts = [
        "# Options of the program\n",
        "The output of `pause-jax COMMAND --help` for each command.\n",
    ]
    app = program()
    commands = [command.name for command in app.registered_commands if command.name]
    for command in [(), *((name,) for name in commands)]:
        said = runner.invoke(app, [*command, "--help"]).output
        parts += [f"## {' '.join(('pause-jax', *command))}\n", f"```text\n{said.strip()}\n```\n"]
    return "\n".join(parts)


def write_notebook_cards(folder: Path) -> None:
    """Write ``notebooks.md``: title, first paragraph and first picture of each notebook."""
    parts = [
        "# Notebooks\n",
        "Each notebook runs in a minute or two on 2 CPU cores or in Colab, without a download.\n",
        "::::{grid} 1 2 2 3\n:gutter: 3\n",
    ]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        title, words = notebook.cells[0].source.removeprefix("# ").split("\n\n")[:2]
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        pictures = (output.get("data", {}).get("image/png") for output in outputs)
        first = next(filter(None, pictures))
        (folder / f"{path.stem}.png").write_bytes(base64.b64decode(first))
        parts.append(
            f":::{{grid-item-card}} {title}\n:img-top: {path.stem}.png\n"
            f":link: ../../notebooks/{path.stem}\n:link-type: doc\n\n{words}\n:::\n"
        )
    (folder / "notebooks.md").write_text("\n".join([*parts, "::::\n"]), "utf-8")


def write() -> None:
    """Write all generated pages."""
    api = _empty(DOCS / "api")
    public = {folder_of(name) for name in public_modules()}
    pages = {"package": ""} | {name: name for name in reversed(folders()) if name in public}
    for page, name in pages.items():
        (api / f"{page}.rst").write_text(folder_page(name), "utf-8")
    lines = "\n".join(pages)
    (api / "index.md").write_text(
        "# Reference\n\nMost programs need only the names in `pause_jax`. The other pages document "
        "folders and modules of the package, from the top [layer](../architecture.md) down.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{lines}\n```\n",
        "utf-8",
    )
    (_empty(DOCS / "command_line") / "options.md").write_text(help_page(), "utf-8")
    gallery = _empty(DOCS / "gallery")
    policy_gallery.write(gallery)
    write_notebook_cards(gallery)


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
