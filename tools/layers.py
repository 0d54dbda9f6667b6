"""Modules of the package, and its folders and layers as defined in ``pyproject.toml``."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pause_jax"


@functools.cache
def modules() -> dict[str, Path]:
    """Return the file of each module by dotted name; for a package, its ``__init__.py``."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def folder_of(module: str) -> str:
    """Return the folder of a module, or an empty text for the top-level package."""
    name = module.partition(".")[2].partition(".")[0]
    return "" if name == "__main__" else name


def layers() -> list[list[str]]:
    """Return the folders of each layer from the bottom up, as the import contract lists them."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    (contract,) = (each["layers"] for each in contracts if each["type"] == "layers")
    return [re.findall(r"\w+", layer) for layer in reversed(contract)]


def folders() -> list[str]:
    """Return all folders from the bottom up."""
    return [name for layer in layers() for name in layer]
