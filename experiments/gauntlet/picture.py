"""Heat map of policies (rows) and fleets (columns), with one panel per time."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.common import figures
from experiments.gauntlet.verdicts import Judgement

# Percentage points at which the colour saturates.
FULL = 15


def draw(
    verdicts: Mapping[str, Mapping[str, Mapping[str, Judgement]]],
    names: Sequence[str],
    out: pathlib.Path,
) -> None:
    """Draw ``out/figures/gauntlet.png``: lead over the yardstick, bold where significant."""
    import matplotlib.pyplot as plt

    fleets = list(next(iter(verdicts.values())))
    width = 2.6 + 0.52 * len(fleets) * len(verdicts)
    figure, panels = plt.subplots(
        1, len(verdicts), figsize=(width, 1.2 + 0.24 * len(names)), sharey=True, squeeze=False
    )
    for axes, (when, now) in zip(panels[0], verdicts.items(), strict=True):
        ahead = np.full((len(names), len(fleets)), np.nan)
        for column, fleet in enumerate(fleets):
            for row, name in enumerate(names):
                if name not in now[fleet]:
                    continue
                found = now[fleet][name]
                ahead[row, column] = found.ahead
                colour = "white" if abs(found.ahead) > 0.7 * FULL else "black"
                weight = "bold" if found.mark else "normal"
                axes.text(
                    column, row, f"{found.ahead:+.0f}", ha="center", va="center",
                    fontsize=6.5, color=colour, weight=weight, alpha=1 if found.mark else 0.6,
                )  # fmt: skip
        axes.imshow(ahead, cmap="RdBu", vmin=-FULL, vmax=FULL, aspect="auto")
        axes.set_title(when, fontsize=9)
        axes.set_xticks(range(len(fleets)), fleets, rotation=60, ha="right", fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
    figure.tight_layout()
    figures.save(figure, out, "gauntlet")
    plt.close(figure)
