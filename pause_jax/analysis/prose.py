"""Names of configs within sentences."""

from __future__ import annotations

from collections.abc import Sequence

# Said one by one; of more the number is said.
_NAMED = 4


def quoted(name: str) -> str:
    """A name that would not be seen as one, ``all, no privacy``, in quotation marks."""
    return name if name.replace("_", "").isalnum() else f"'{name}'"


def listed(names: Sequence[str], named: int = _NAMED) -> str:
    """Words as a list: a, b and c; what is beyond ``named`` is counted."""
    shown = list(names)
    if len(shown) > named:
        shown = [*shown[:named], f"{len(shown) - named} more"]
    return ", ".join(shown[:-1]) + (" and " if len(shown) > 1 else "") + shown[-1]
