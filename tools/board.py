"""Scores of the library's policies on the benchmark, stored as its board.

python -m tools.board [--only tails,shy]

To resume after an interruption, run it again. Fleets that already have scores are skipped.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import jax
import typer
import xarray as xr

from pause_jax.analysis.gauntlet.board import BOARD, refusal, together, write
from pause_jax.analysis.gauntlet.fleets import YARDSTICK, Fleet, fleets
from pause_jax.analysis.gauntlet.picture import draw
from pause_jax.analysis.gauntlet.play import play
from pause_jax.analysis.gauntlet.standings import TIMES
from pause_jax.policies import NAMED, PolicyConfig

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "figures" / "board.png"
# Page that contains the table of :func:`table`.
PAGE = DOCS / "guides" / "which_policy.md"
# Excluded policies, with the reason.
LEFT_OUT = {"pause_exhaustive": "makes the choices of pause, but scores 142,506 cohorts per round"}


def policies() -> dict[str, PolicyConfig]:
    """Return the board's policies by name."""
    return {name: policy for name, policy in NAMED.items() if name not in LEFT_OUT}


def main(
    only: Annotated[str, typer.Option(help="Comma-separated fleets (default: all).")] = "",
) -> None:
    """Run the policies on all fleets without stored scores, then store and draw the scores."""
    found = fleets()
    kept: dict[str, xr.Dataset] = {}
    if BOARD.exists():
        before = xr.load_dataset(BOARD, engine="h5netcdf")
        for name in map(str, before.fleet.values):
            if name in found and before.digest.sel(fleet=name).item() == found[name].digest:
                kept[name] = before.sel(fleet=name).drop_vars(["digest", "fleet"])
    for name in only.split(",") if only else found:
        if name in kept:
            continue
        kept[name] = scores(name, found[name])
        in_order = {each: kept[each] for each in found if each in kept}
        write(together(in_order), found)
        jax.clear_caches()
    board = xr.load_dataset(BOARD, engine="h5netcdf")
    draw(board, PICTURE)
    write_table(board)


def scores(name: str, fleet: Fleet) -> xr.Dataset:
    """Run all policies that can run on a fleet, and return their readings [policy, seed]."""
    chosen = {}
    for policy, config in policies().items():
        if why := refusal(fleet, config):
            typer.echo(f"{name}: {policy} cannot run. {why}", err=True)
        else:
            chosen[policy] = config
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return play(fleet, chosen)


def marks(board: xr.Dataset, sign: int) -> xr.Dataset:
    """Return where policies are ahead of the yardstick (sign 1) or behind it (-1) in every world.

    With 16 worlds, all marks of both signs, fleets and times hold jointly with a probability of at
    least 95 %: the exact sign test gives 2^-15 per cell, and there are fewer than 1,638 cells.
    """
    readings = board[list(TIMES)]
    return (sign * (readings - readings.sel(policy=YARDSTICK)) > 0).all("seed")


def table(board: xr.Dataset) -> str:
    """Return a Markdown table of the marked policies by fleet, with mean accuracies in %."""
    rows = ["| fleet | ahead, early | ahead, late | behind, late |", "|---|---|---|---|"]
    for fleet in board.fleet.values:
        cells = []
        for time, sign in (("early", 1), ("late", 1), ("late", -1)):
            means = board[time].sel(fleet=fleet).mean("seed").to_series()
            marked = marks(board, sign)[time].sel(fleet=fleet).to_series()
            names = means[marked].sort_values(ascending=sign < 0).index
            listed = [f"`{name}` {means[name]:.1f}" for name in names[:4]]
            more = [f"{len(names) - 4} more"] if len(names) > 4 else []
            found = f": {', '.join([*listed, *more])}" if listed else ""
            cells.append(f"{means[YARDSTICK]:.1f}{found}")
        rows.append(f"| `{fleet}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def write_table(board: xr.Dataset) -> None:
    """Write the table into the guide "Which policy?", in place of the one that is there."""
    text = table(board)
    first, last = text.partition("\n")[0], f"| `{board.fleet.values[-1]}` |"
    before, _, rest = PAGE.read_text("utf-8").partition(first)
    after = rest.partition(last)[2].partition("\n")[2]
    PAGE.write_text(f"{before}{text}\n{after}", "utf-8")


if __name__ == "__main__":
    typer.run(main)
