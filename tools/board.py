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
from pause_jax.analysis.gauntlet.fleets import Fleet, fleets
from pause_jax.analysis.gauntlet.picture import draw
from pause_jax.analysis.gauntlet.play import play
from pause_jax.policies import NAMED, PolicyConfig

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "board.png"
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
    draw(xr.load_dataset(BOARD, engine="h5netcdf"), PICTURE)


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


if __name__ == "__main__":
    typer.run(main)
