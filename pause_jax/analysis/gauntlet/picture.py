"""Heat map of the board's scores. Requires the ``plot`` extra (matplotlib)."""

from __future__ import annotations

import pathlib

import numpy as np
import xarray as xr

from pause_jax.analysis.gauntlet.fleets import YARDSTICK
from pause_jax.analysis.gauntlet.standings import TIMES

# Largest lead on the colour scale, in percentage points.
_LIMIT = 20.0


def draw(scores: xr.Dataset, path: pathlib.Path, policy: str | None = None) -> None:
    """Draw a heat map of each policy's median lead over the reference policy, by fleet and time.

    Policies are sorted by their lead at the late evaluation time, averaged over fleets, best first.

    Args:
      scores: data set [policy, fleet, seed] from ``gauntlet``.
      path: output file, whose suffix determines the format.
      policy: policy whose name is printed in bold.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    leads = {t: (scores[t] - scores[t].sel(policy=YARDSTICK)).median("seed") for t in TIMES}
    best = np.argsort(-leads["late"].mean("fleet").fillna(-np.inf).values, kind="stable")
    names = scores.policy.values[best]
    number = scores.sizes["fleet"]
    figure = Figure(figsize=(2.2 + 0.5 * number, 1.2 + 0.14 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(TIMES), sharey=True)
    for axes, (time, lead) in zip(panels, leads.items(), strict=True):
        image = axes.imshow(
            lead.values[best], cmap="RdBu", vmin=-_LIMIT, vmax=_LIMIT, aspect="auto"
        )
        axes.set_xticks(range(number), scores.fleet.values, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_title(f"{time}", fontsize=8, loc="left")
        axes.set_facecolor("0.85")  # grey if the policy cannot run on the fleet
    for label in panels[0].get_yticklabels():
        if label.get_text() == policy:
            label.set_fontweight("bold")
    bar = figure.colorbar(image, ax=panels, shrink=0.5)
    bar.set_label(f"lead over {YARDSTICK} in points of accuracy", fontsize=7)
    bar.ax.tick_params(labelsize=7)
    with rc_context({"pdf.fonttype": 42}):  # many journals reject Type 3 fonts
        figure.savefig(path)
