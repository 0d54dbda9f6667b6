"""The look of a config in all figures and reports: one colour, marker and dash for one name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

# Distinct for colour-blind readers too, and each 3:1 at least against its page.
# The two lists are of the same hues: a page swaps them by the reader's colour scheme.
LIGHT_PAGE, DARK_PAGE = "#FFFFFF", "#0F1419"
LIGHT = ("#4459CA", "#F8636C", "#09803F", "#B68B07", "#289CE0", "#802E8C", "#6D5C6E", "#8E2B00")
DARK = ("#7190EF", "#FF6671", "#39B781", "#EFC655", "#8BD5FF", "#C890C5", "#B1C5BF", "#DB944C")
# Of matplotlib, and the same as an SVG path in a box from -1 to 1.
MARKERS = (
    ("o", "M.85,0A.85,.85,0,1,1,-.85,0A.85,.85,0,1,1,.85,0Z"),
    ("s", "M-.75,-.75L.75,-.75L.75,.75L-.75,.75Z"),
    ("^", "M0,-.95L.95,.75L-.95,.75Z"),
    ("D", "M0,-1L1,0L0,1L-1,0Z"),
    ("v", "M0,.95L.95,-.75L-.95,-.75Z"),
    ("P", "M-.33,-1L.33,-1L.33,-.33L1,-.33L1,.33L.33,.33L.33,1L-.33,1L-.33,.33L-1,.33L-1,-.33"
          "L-.33,-.33Z"),
    ("<", "M-.95,0L.75,-.95L.75,.95Z"),
    (">", "M.95,0L-.75,-.95L-.75,.95Z"),
)  # fmt: skip
# Lengths of strokes and gaps, in widths of a line; the first is a line without gaps.
DASHES = ((), (5, 2), (1, 1.5), (6, 2, 1, 2), (2, 3), (9, 2), (4, 1, 1, 1, 1, 1), (1, 4))
# Names that look the same in every figure, whatever stands beside them.
KNOWN = ("pause", "sa_pause", "random", "fastest", "all", "all, no privacy", "bsfl", "genie")


class Style(NamedTuple):
    """How a config is drawn."""

    colour: str  # on a light page
    marker: str  # of matplotlib
    shape: str  # the same marker as an SVG path in a box from -1 to 1
    dash: tuple[float, ...]  # strokes and gaps; empty for a whole line


def style_at(place: int) -> Style:
    """The style of a place: no two of the first 64 have the same colour and dashes, and no two of
    eight in a row the same marker.
    """
    turn, column = divmod(place, len(LIGHT))
    marker, shape = MARKERS[(column + turn) % len(MARKERS)]
    return Style(LIGHT[column], marker, shape, DASHES[turn % len(DASHES)])


def styles(names: Iterable[str]) -> dict[str, Style]:
    """The style of each config of a result.

    Args:
      names: of all configs, in their order. A name of ``KNOWN`` has its own style; the others get
        the places that are free, the first one first.
    """
    labels = [str(name) for name in names]
    taken = {KNOWN.index(label) for label in labels if label in KNOWN}
    free = (place for place in itertools.count() if place not in taken)
    return {
        label: style_at(KNOWN.index(label) if label in KNOWN else next(free)) for label in labels
    }
