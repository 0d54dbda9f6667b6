"""Scores of the library's policies on the benchmark, stored as its boards.

python -m tools.board tune
python -m tools.board score [--track fashion --data-dir FOLDER] [--only tails,shy]

To resume after an interruption, run a command again. It skips what is already stored.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
import xarray as xr

from pause_jax.analysis.gauntlet import board
from pause_jax.analysis.gauntlet.fleets import YARDSTICK, Fleet, fleets
from pause_jax.analysis.gauntlet.picture import draw
from pause_jax.analysis.gauntlet.play import play
from pause_jax.analysis.gauntlet.standings import TIMES
from pause_jax.base.struct import ConfigError, fields, is_node, is_static, nested
from pause_jax.config import validate
from pause_jax.policies import NAMED, Pause, PolicyConfig

DOCS = Path(__file__).parents[1] / "docs"
# Page that contains the table of :func:`table`.
PAGE = DOCS / "guides" / "which_policy.md"
# Excluded policies, with the reason.
LEFT_OUT = {"pause_exhaustive": "makes the choices of pause, but scores 142,506 cohorts per round"}
PARAMETERS = ("default", "tuned")

# The search: for each policy, random parameters are compared on a few fleets of the digits track,
# in worlds that are not on the board.
TUNED = Path(__file__).with_name("tuned.json")
SEARCH_FLEETS = ("alike", "labels", "spent", "measured")
CANDIDATES = 8
SEARCH_SEEDS = 4
# Each number is multiplied by a factor between 1 / SPREAD and SPREAD. If it cannot exceed 1, the
# factor applies to the odds.
SPREAD = 8.0
# Parameters that describe the cost of asking clients, and not the policy's choice.
COSTS = ("query_seconds", "query_share", "upload_share")

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
Only = Annotated[str, typer.Option(help="Comma-separated fleets (default: all).")]


def policies() -> dict[str, PolicyConfig]:
    """Return the board's policies by name."""
    return {name: policy for name, policy in NAMED.items() if name not in LEFT_OUT}


@app.command()
def score(
    track: Annotated[str, typer.Option(help="Data set: digits or fashion.")] = "digits",
    data_dir: Annotated[str | None, typer.Option(help="Folder of prepared data sets.")] = None,
    only: Only = "",
) -> None:
    """Run the policies that have no stored scores, then store and draw all scores."""
    found = fleets(track, data_dir)
    tuned = json.loads(TUNED.read_text("utf-8"))
    settings = xr.DataArray(
        [["{}"] * len(policies()), [json.dumps(tuned.get(name, {})) for name in policies()]],
        {"parameters": list(PARAMETERS), "policy": list(policies())},
    )
    kept: dict[str, xr.Dataset] = {}
    if board.path(track).exists():
        before = xr.load_dataset(board.path(track), engine="h5netcdf")
        now = settings.reindex_like(before.settings, fill_value="")
        before = before.isel(policy=(before.settings == now).all("parameters").values)
        for name in map(str, before.fleet.values):
            if before.digest.sel(fleet=name).item() == found[name].digest:
                one = before.sel(fleet=name).drop_vars(["digest", "fleet", "settings"])
                kept[name] = one.dropna("policy", how="all", subset=list(TIMES))
    for name in only.split(",") if only else found:
        stored = [kept[name]] if name in kept else []
        left = {
            policy: config
            for policy, config in runnable(name, found[name]).items()
            if not stored or policy not in stored[0].policy
        }
        if not left:
            continue
        kept[name] = xr.concat([*stored, scores(found[name], left, tuned)], "policy")
        in_order = {each: kept[each] for each in found if each in kept}
        whole = board.together(in_order).reindex(policy=list(policies()))
        board.write(whole.assign_coords(settings=settings), found, track)
        jax.clear_caches()
    found = {name: fleet for name, fleet in found.items() if name in kept}
    default, tuned_scores = (board.read(found, track, tuned=each) for each in (False, True))
    draw(default, picture(track))
    if track == "digits":
        replace_table(table(default))
    replace_table(gains(default, tuned_scores, track))


def picture(track: str) -> Path:
    """Return the file with the picture of a track's board."""
    return DOCS / "figures" / f"board_{track}.png"


def runnable(name: str, fleet: Fleet) -> dict[str, PolicyConfig]:
    """Return the policies that can run on a fleet, and print why the others cannot."""
    chosen = {}
    for policy, config in policies().items():
        if why := board.refusal(fleet, config):
            typer.echo(f"{name}: {policy} cannot run. {why}", err=True)
        else:
            chosen[policy] = config
    return chosen


def scores(
    fleet: Fleet,
    policies: Mapping[str, PolicyConfig],
    tuned: Mapping[str, Mapping[str, float]],
) -> xr.Dataset:
    """Run policies on a fleet with default and tuned parameters.

    Returns:
      Readings [parameters, policy, seed]. A policy that was not tuned has equal readings in both.
    """
    settings = {name: changes for name, changes in tuned.items() if name in policies and changes}
    both = {**policies, **{f"{name} tuned": policies[name] for name in settings}}
    found = _quietly(fleet, both, {f"{name} tuned": settings[name] for name in settings})
    best = [f"{name} tuned" if name in settings else name for name in policies]
    rows = [
        found.sel(policy=names).assign_coords(policy=list(policies))
        for names in (list(policies), best)
    ]
    return xr.concat(rows, xr.DataArray(list(PARAMETERS), dims="parameters", name="parameters"))


def _quietly(
    fleet: Fleet,
    chosen: Mapping[str, PolicyConfig],
    settings: Mapping[str, Mapping[str, float]],
    **worlds: Any,
) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return play(fleet, chosen, settings=settings, **worlds)


@app.command()
def tune() -> None:
    """Search the best parameters of each policy, and store them in tools/tuned.json.

    A candidate's score is its accuracy, averaged over both times, fleets and seeds.
    """
    best: dict[str, dict[str, float]] = {}
    if TUNED.exists():
        best = json.loads(TUNED.read_text("utf-8"))
    found = fleets()
    for policy, config in policies().items():
        tried = candidates(config)
        if policy in best or len(tried) == 1:
            continue
        totals = np.zeros(len(tried))
        for name in SEARCH_FLEETS:
            if board.refusal(found[name], config):
                continue
            settings = {str(i): changes for i, changes in enumerate(tried)}
            chosen = dict.fromkeys(settings, config)
            read = _quietly(found[name], chosen, settings, seeds=slice(SEARCH_SEEDS), root=1)
            totals += sum(read[time].mean("seed").values for time in TIMES)
        best[policy] = tried[int(np.argmax(totals))]
        typer.echo(f"{policy}: {best[policy]} {totals.max() - totals[0]:+.2f}")
        TUNED.write_text(json.dumps(best, indent=2) + "\n", "utf-8")
        jax.clear_caches()


def candidates(policy: PolicyConfig) -> list[dict[str, float]]:
    """Return changes to try: none ({}), and random values of all numbers, by path.

    The numbers are the policy's, and the reward's weights if the policy maximises it. Numbers that
    are 0 or None keep their values, and so do integers and choices.
    """
    base = fleets()["alike"].config.replace(policy=policy)
    parts = list(nested(policy, "policy"))
    if isinstance(policy, Pause):
        parts.append(("reward", base.reward))
    numbers = {
        f"{path}.{name}": (value, rule.at_most == 1 and value < 1)
        for path, part in parts
        for name, value, rule, field in fields(part)
        if not is_static(field) and not is_node(field) and value and name not in COSTS
    }
    rng = np.random.default_rng(0)
    found: list[dict[str, float]] = [{}]
    while numbers and len(found) < CANDIDATES:
        changes = {}
        for path, (value, share) in numbers.items():
            factor = SPREAD ** rng.uniform(-1, 1)
            new = factor * value / (1 - value + factor * value) if share else factor * value
            changes[path] = float(f"{new:.3g}")
        try:
            validate(base.override(changes))
        except ConfigError:
            continue  # out of the parameters' bounds
        found.append(changes)
    return found


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


def gains(default: xr.Dataset, tuned: xr.Dataset, track: str) -> str:
    """Return a Markdown table of the tuned policies with the largest late leads over ``random``.

    Leads are in percentage points, averaged over fleets and seeds.
    """
    rows = {}
    for policy in [
        str(name) for name in tuned.policy.values if tuned.settings.sel(policy=name) != "{}"
    ]:
        cells = []
        for scores in (default, tuned):
            lead = (scores.late - default.late.sel(policy=YARDSTICK)).sel(policy=policy)
            ahead, behind = (int((sign * lead > 0).all("seed").sum()) for sign in (1, -1))
            cells.append((float(lead.mean()), ahead, behind))
        rows[policy] = cells
    best = sorted(rows, key=lambda policy: -rows[policy][1][0])[:12]
    head = f"| policy, on `{track}` | late lead | tuned | ahead, behind | tuned |"
    lines = [head, "|---|---|---|---|---|"]
    for policy in best:
        (lead, *marks), (tuned_lead, *tuned_marks) = rows[policy]
        counts = " | ".join(f"{ahead}, {behind}" for ahead, behind in (marks, tuned_marks))
        lines.append(f"| `{policy}` | {lead:+.1f} | {tuned_lead:+.1f} | {counts} |")
    return "\n".join(lines)


def replace_table(text: str) -> None:
    """Replace the table with the same header in the guide "Which policy?"."""
    page = PAGE.read_text("utf-8")
    before, header, rest = page.partition(text.partition("\n")[0])
    if not header:
        raise ValueError(f"{PAGE}: has no table with the header {text.splitlines()[0]}")
    after = rest.partition("\n\n")[2]
    PAGE.write_text(f"{before}{text}\n\n{after}", "utf-8")


if __name__ == "__main__":
    app()
