"""The colours and dashes of a comparison: a config has the same ones in every picture."""

from __future__ import annotations

# Distinct for colour-blind readers too, and each 3:1 at least against its page.
# The two lists are of the same hues: a page swaps them by the reader's colour scheme.
LIGHT_PAGE, DARK_PAGE = "#FFFFFF", "#0F1419"
LIGHT = ("#4459CA", "#F8636C", "#09803F", "#B68B07", "#289CE0", "#802E8C", "#6D5C6E", "#8E2B00")
DARK = ("#7190EF", "#FF6671", "#39B781", "#EFC655", "#8BD5FF", "#C890C5", "#B1C5BF", "#DB944C")
# Lengths of strokes and gaps, in widths of a line; the first is a line without gaps.
DASHES = ((), (5, 2), (1, 1.5), (6, 2, 1, 2), (2, 3), (9, 2), (4, 1, 1, 1, 1, 1), (1, 4))


def colour(place: int) -> str:
    """The colour of the config at a place, on a light page."""
    return LIGHT[place % len(LIGHT)]


def dash(place: int) -> tuple[float, ...]:
    """Its dashes: no two of the first 64 places have both the same."""
    return DASHES[place // len(LIGHT) % len(DASHES)]
