"""Import paths of version 0.2 that moved: they work for one release, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_BASE = "cache checks client_ids memory reference registry source_file spelling struct"
_RNG = "draws keys summation"
_RECORD = "quantities quantity recorder result"
_SWEEP = {
    **{name: name for name in ("batch", "distributed", "families", "provenance", "store", "sweep")},
    **{"carry": "checkpoint", "jobs": "prepare", "joining": "merge", "outline": "config_summary"},
    **{"plan": "chunks", "playing": "execute"},
}

# Old name -> new name, both below `pause_jax`. The longest old name that fits counts.
MOVED: dict[str, str] = {
    **{name: f"base.{name}" for name in _BASE.split()},
    **{name: f"rng.{name}" for name in _RNG.split()},
    **{f"engine.{name}": f"run.record.{name}" for name in _RECORD.split()},
    **{f"engine.{old}": f"sweep.{new}" for old, new in _SWEEP.items()},
    **{f"learning.{name}": "learning.models" for name in ("norms", "recurrent")},
    "analysis.colours": "analysis.curves",
    "config_file": "config.config_file",
    "engine": "run",
    "evenly": "rng.draws",
    "learning.natural": "learning.partition",
    "learning.own_model": "learning.custom_model",
    "learning.server": "learning.fedavg",
    "presence": "world.availability",
    "presence.kinds": "world.availability.base",
    "privacy.calibration": "privacy.gaussian",
    "report": "analysis.report",
}


def moved_to(name: str) -> str | None:
    """Return the present name of a module, or None if it did not move."""
    package, *parts = name.split(".")
    if package != "pause_jax":
        return None
    for length in range(len(parts), 0, -1):
        old = ".".join(parts[:length])
        if old in MOVED:
            return ".".join([package, MOVED[old], *parts[length:]])
    return None


class MovedFinder(MetaPathFinder, Loader):
    """Import a module by its old name: the same module object, after a ``DeprecationWarning``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if moved_to(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        new = moved_to(module.__name__)
        assert new is not None
        message = f"{module.__name__} moved: import {new}. The old name goes with the next release."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        if module.__name__ == "pause_jax.engine":  # its files went to several folders
            module.__path__ = []
        else:
            sys.modules[module.__name__] = importlib.import_module(new)
