"""Draws the house: the rooms of the package in their order, and who imports whom.

    python docs/house.py            # writes docs/figures/house.svg
    python docs/house.py --check    # exit status 1 if that file is not what the code looks like

The arrows are every ``import`` of the source, also inside functions and for typing.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "figures" / "house.svg"

# From the ground up: a room may import those before it, never those after it.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("base", "rng"),
    ("bandit", "world", "privacy"),
    ("learning", "policies"),
    ("config",),
    ("run",),
    ("sweep", "deploy", "testing"),
    ("analysis",),
    ("cli",),
)
# Files beside the rooms: they give public names to what stands in a room.
DOORS = ("__main__", "_moved", "flower", "latency", "presets", "reward", "search", "selector")
ORDER = tuple(room for floor in FLOORS for room in floor)


class Import(NamedTuple):
    """One module names another.

    Attributes:
      importer, imported: dotted module names.
      line: where, in the importer's file.
    """

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.imported}"


def modules(package: Path) -> dict[str, Path]:
    """The file of each module of a package, by dotted name; a folder goes by its own name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room(module: str) -> str:
    """The room that a module stands in; empty for the package itself and its doors."""
    name = module.partition(".")[2].partition(".")[0]
    return "" if name in DOORS else name


def imports(package: Path) -> list[Import]:
    """Every import of one module of the package by another.

    ``from a import b`` counts as an import of module ``a.b`` if there is one, unless the package
    ``a`` means something else by ``b``. That Python runs ``a/__init__.py`` first is not counted.
    """
    files = modules(package)
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in files.items()}
    found = []
    for importer, tree in trees.items():
        folder = files[importer].name == "__init__.py"
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name in _names(node, importer, folder, trees):
                    if name.partition(".")[0] == package.name:
                        found.append(Import(importer, _module(name, trees), node.lineno))
    return sorted(set(found))


def _names(
    node: ast.Import | ast.ImportFrom, importer: str, folder: bool, trees: dict[str, ast.Module]
) -> Iterator[str]:
    """The dotted names that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    source = _source(node, importer, folder)
    for alias in node.names:
        module = f"{source}.{alias.name}"
        meant = module in trees and not _means_other(trees[source], source, alias.name)
        yield module if meant else source


def _source(node: ast.ImportFrom, importer: str, folder: bool) -> str:
    """What stands between ``from`` and ``import``, with the dots of a relative import resolved."""
    if not node.level:
        return node.module or ""
    above = importer.split(".") + ["__init__"] * folder
    return ".".join(above[: -node.level] + ([node.module] if node.module else []))


def _means_other(tree: ast.Module, package: str, name: str) -> bool:
    """Whether a package binds the name of its submodule to something that it imports."""
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module != package
        and any((alias.asname or alias.name) == name for alias in node.names)
        for node in ast.walk(tree)
    )


def _module(name: str, trees: dict[str, ast.Module]) -> str:
    while name not in trees and "." in name:
        name = name.rpartition(".")[0]
    return name


def between_rooms(found: list[Import]) -> Counter[tuple[str, str]]:
    """How many modules of a room import how many of another: pairs of modules, by pair of rooms."""
    pairs = {(each.importer, each.imported) for each in found}
    rooms = Counter((room(importer), room(imported)) for importer, imported in pairs)
    return Counter({pair: n for pair, n in rooms.items() if "" not in pair and len(set(pair)) == 2})


def purpose(path: Path) -> str:
    """The first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n")[0].replace("`", "")


LEFT, TOP, BOX, LANE, LANES_AT = 24, 92, 450, 31, 46
PAD, LINE, GAP, FLOOR_GAP = 9, 14, 6, 10
STYLE = """
  .page { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e }
  .box { fill: #f6f8fa; stroke: #d1d9e0 } .beam { stroke: #d1d9e0 }
  .name { font-weight: 600; font-size: 13.5px } .text { font-size: 11px }
  .count { fill: #ffffff; font-weight: 600; font-size: 10px; text-anchor: middle }
  .wire { fill: none; stroke: currentColor; stroke-width: 1.6 } .dot { fill: currentColor }
  .f0 { color: #6e5494 } .f1 { color: #0a7a76 } .f2 { color: #b0531c }
  .f3 { color: #8a6a00 } .f4 { color: #1f6fd0 } .f5 { color: #57606a }
  .f6 { color: #2d7d32 } .f7 { color: #a83279 } .up { color: #d1242f }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .ink { fill: #f0f6fc } .soft { fill: #9198a1 }
    .box { fill: #151b23; stroke: #3d444d } .beam { stroke: #3d444d } .count { fill: #0d1117 }
    .f0 { color: #b79be0 } .f1 { color: #4fc4bd } .f2 { color: #f0915a }
    .f3 { color: #d8b13c } .f4 { color: #6cb0ff } .f5 { color: #a5adb6 }
    .f6 { color: #6fbf73 } .f7 { color: #e58ac0 } .up { color: #ff7b72 }
  }
"""


def draw(package: Path) -> str:
    """The picture, as SVG text."""
    files = modules(package)
    arrows = between_rooms(imports(package))
    rooms = [name for name in reversed(ORDER) if f"{package.name}.{name}" in files]
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    imported = [name for name in rooms if any(to == name for _, to in arrows)]
    x = {name: LEFT + BOX + LANES_AT + LANE * place for place, name in enumerate(imported)}

    boxes, wires, dots, middle, bottom = [], [], [], {}, TOP
    for above, name in zip([rooms[0], *rooms], rooms, strict=False):
        bottom += 0 if name == rooms[0] else GAP if floor[above] == floor[name] else GAP + FLOOR_GAP
        lines = textwrap.wrap(purpose(files[f"{package.name}.{name}"]), 52)
        height = 2 * PAD + LINE * max(len(lines), 1)
        middle[name] = bottom + height // 2
        boxes += _box(name, floor[name], lines, bottom, height)
        bottom += height

    for name in imported:
        ends = [middle[importer] + 5 for importer, to in arrows if to == name]
        wires.append(_lane(x[name], ends, middle[name] - 5, floor[name]))
    for name in rooms:
        reach = [x[to] for importer, to in arrows if importer == name]
        if reach:
            path = f"M{LEFT + BOX} {middle[name] + 5}H{max(reach)}"
            wires.append(f'<path class="wire f{floor[name]}" opacity=".45" d="{path}"/>')
    for (importer, to), number in sorted(arrows.items()):
        upwards = ORDER.index(importer) < ORDER.index(to)
        dots += _dot(x[to], middle[importer] + 5, number, "up" if upwards else f"f{floor[to]}")

    width, height = max(x.values()) + 34, bottom + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">",
        f'<title id="title">The rooms of {escape(package.name)} and their imports</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="10"/>',
        *_roof(package.name),
        *wires,
        *boxes,
        *dots,
        f'<path class="beam" stroke-width="3" d="M{LEFT - 12} {bottom + 9}h{BOX + 24}"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _roof(name: str) -> list[str]:
    middle, low = LEFT + BOX // 2, TOP - 9
    legend = (
        "Follow a line from a room to a dot, and the dot's line down to the room that it imports.",
        "The number counts pairs of modules. A crossing without a dot is no import.",
    )
    return [
        f'<path class="box" d="M{LEFT - 12} {low}L{middle} 18L{LEFT + BOX + 12} {low}Z"/>',
        f'<text class="ink name" x="{middle}" y="{low - 22}" text-anchor="middle">{name}</text>',
        f'<text class="soft text" x="{middle}" y="{low - 7}" text-anchor="middle">'
        "__init__.py: what users import</text>",
        *(
            f'<text class="soft text" x="{LEFT + BOX + 24}" y="{34 + 16 * place}">{line}</text>'
            for place, line in enumerate(textwrap.wrap(" ".join(legend), 68))
        ),
    ]


def _box(name: str, floor: int, lines: list[str], y: int, height: int) -> list[str]:
    first = y + height / 2 - LINE * (len(lines) - 1) / 2 + 4
    return [
        f'<rect class="box" x="{LEFT}" y="{y}" width="{BOX}" height="{height}" rx="4"/>',
        f'<rect class="dot f{floor}" x="{LEFT}" y="{y}" width="5" height="{height}" rx="2"/>',
        f'<text class="ink name" x="{LEFT + 16}" y="{y + height / 2 + 5:g}">{name}</text>',
        *(
            f'<text class="soft text" x="{LEFT + 112}" y="{first + LINE * place:g}">'
            f"{escape(line, quote=False)}</text>"
            for place, line in enumerate(lines)
        ),
    ]


def _lane(x: int, ends: list[int], y: int, floor: int) -> str:
    """Down from the first importer, and left into the imported room, with an arrow's head."""
    tip = LEFT + BOX + 2
    below = f"M{x} {max(ends)}V{y - 8}" if max(ends) > y else ""
    return (
        f'<path class="wire f{floor}" d="M{x} {min(ends)}V{y - 8}q0 8-8 8H{tip + 6}{below}"/>'
        f'<path class="dot f{floor}" d="M{tip} {y}l9-4.5v9z"/>'
    )


def _dot(x: int, y: int, number: int, colour: str) -> list[str]:
    radius = min(7 + number / 4, 11)
    return [
        f'<circle class="dot {colour}" cx="{x}" cy="{y}" r="{radius:g}"/>',
        f'<text class="count" x="{x}" y="{y + 3.5:g}">{number}</text>',
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check = parser.parse_args().check
    picture = draw(ROOT / "pause_jax")
    if not check:
        PICTURE.write_text(picture, "utf-8")
    elif not PICTURE.is_file() or PICTURE.read_text("utf-8") != picture:
        sys.exit(f"{PICTURE.relative_to(ROOT)} is not up to date: make house")


if __name__ == "__main__":
    main()
