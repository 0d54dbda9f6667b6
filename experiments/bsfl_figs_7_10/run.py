"""BSFL Fig. 7 (left) and Fig. 10 (left): regret while a linear model is trained.

python -m experiments.bsfl_figs_7_10.run
"""

from __future__ import annotations

import json
import pathlib
from typing import Annotated, Any

import jax
import typer
import xarray as xr

from experiments.common import claims, regret_setting
from experiments.common.claims import Claim
from experiments.common.outcome import Outcome
from pause_jax import SimConfig, presets, regret
from pause_jax.policies import PowerOfChoice, Random

HERE = pathlib.Path(__file__).parent
OURS = ("bsfl", "alsa")


def panels(rounds: int) -> dict[str, dict[str, SimConfig]]:
    """Return the configs of both figures; power-of-choice ranks all clients by latest loss."""
    everyone = PowerOfChoice(loss="stale", candidates=20)
    iid = {
        name: presets.bsfl_linear(name) for name in ("bsfl", "alsa", "cs_ucb", "rbcs_f", "random")
    }
    iid["power_of_choice"] = presets.bsfl_linear(everyone)
    other = {
        name: presets.bsfl_linear_noniid(name) for name in ("bsfl", "alsa", "cs_ucb_q", "rbcs_f")
    }
    other["random"] = presets.bsfl_linear_noniid(Random(weighting="data"))
    other["power_of_choice"] = presets.bsfl_linear_noniid(everyone)
    return {
        title: {
            name: config.replace(num_rounds=rounds, eval_every=rounds)
            for name, config in configs.items()
        }
        for title, configs in (
            ("Fig. 7, left: i.i.d.", iid),
            ("Fig. 10, left: non-i.i.d.", other),
        )
    }


def family(figure: str, curves: xr.DataArray) -> list[Claim]:
    """Return the paper's claims about a figure.

    BSFL, with exact search and with ALSA, has less regret than each other policy. Its regret is
    nearer to a logarithm than to a square root, and the regret of the other policies is linear.

    Args:
      figure: name of the figure.
      curves: cumulative regret [config, seed, round] over the paper's number of rounds.
    """
    last = curves.isel(round=-1)
    rivals = [str(name) for name in curves.config.values if name not in OURS]
    found = []
    for ours, others in (("bsfl", ("alsa", *rivals)), ("alsa", rivals)):
        for other in others:
            text = f"{figure}: {ours} has less regret than {other}"
            rival, own = (last.sel(config=name).values for name in (other, ours))
            found.append(claims.larger(text, rival, own, "regret"))
    for name in OURS:
        text = f"{figure}: {name}: nearer to a logarithm than to a square root"
        found.append(regret_setting.logarithmic(text, curves.sel(config=name)))
    for name in rivals:
        text = f"{figure}: {name}: linear or faster"
        found.append(regret_setting.linear(text, curves.sel(config=name)))
    return found


def shown(
    curves: xr.DataArray, rules: dict[str, Any], most_share: float
) -> dict[str, tuple[str, bool]]:
    """Return name -> (comparison of measurement and bound, whether it holds).

    Args:
      curves: cumulative regret [config, seed, round].
      rules: bounds of the exponents.
      most_share: largest admissible ratio of BSFL's regret to the next best policy's.
    """
    table = {row.name: row for row in regret.rows(curves)}
    others = [row for row in table.values() if row.name not in rules["sublinear"]]
    found = {}
    for name in rules["sublinear"]:
        grown, most = table[name].growth.exponent, rules["exponent_at_most"][name]
        found[f"{name} sublinear"] = f"{name} has exponent {grown:.2f} <= {most}", grown <= most
    least = min(others, key=lambda row: row.regret)
    share = table["bsfl"].regret / least.regret
    text = f"bsfl has {share:.2f} of the regret of the next, {least.name}, at most {most_share}"
    found["bsfl least"] = text, share <= most_share
    for row in others:
        grown, edge = row.growth.exponent, rules["linear_at_least"]
        text = f"{row.name} has exponent {grown:.2f} >= {edge}"
        found[f"{row.name} linear"] = text, grown >= edge
    return found


def judge(outcome: Outcome, title: str, curves: xr.DataArray, rules: dict[str, Any]) -> None:
    """Add tables and checks at the paper's and all rounds, and verdicts at the paper's rounds."""
    paper, last = rules["paper_rounds"][title], curves.sizes["round"]
    for rounds in (paper, last):
        outcome.add(f"-- {title}, first {rounds} rounds", regret.HEADING)
        outcome.add(*map(str, regret.rows(curves.isel(round=slice(rounds)))))
    first = curves.isel(round=slice(paper))
    outcome.judge(family(title.split(":")[0].replace(",", ""), first))
    short = shown(first, rules, rules["share_at_most"]["paper_rounds"])
    outcome.add(f"means after {paper} rounds, as many as the paper has:")
    outcome.add(*(f"{'yes' if so else 'no ':4} {text}" for text, so in short.values()))
    failed = [name for name, (_, so) in short.items() if not so]
    outcome.check(
        f"{title}, {paper} rounds: these do not show yet: {', '.join(failed)}",
        failed == rules["not_at_paper_rounds"][title],
    )
    for text, so in shown(curves, rules, rules["share_at_most"]["last"]).values():
        outcome.check(f"{title}, {last} rounds: {text}", so)


def main(
    rounds: int = 10_000,
    seeds: int = 10,
    out: Annotated[pathlib.Path, typer.Option(help="Where output is written.")] = HERE,
) -> None:
    """Run, print and write the comparison. Exit with status 1 if a check fails."""
    rules = json.loads((HERE / "expected.json").read_text())
    outcome = Outcome(f"{seeds} seeds, {rounds} rounds, K = 20, m = 5, speed_normal, linear model")
    keys = jax.random.split(jax.random.key(0), seeds)
    drawn: dict[str, xr.DataArray] = {}
    for title, configs in panels(rounds).items():
        drawn[title] = regret.measure(configs, keys)
        judge(outcome, title, drawn[title], rules)
    regret_setting.draw(drawn, out)
    short = {
        title: curves.isel(round=slice(rules["paper_rounds"][title]))
        for title, curves in drawn.items()
    }
    regret_setting.draw(short, out, "regret_paper_rounds", scale="linear")
    outcome.finish(out)


if __name__ == "__main__":
    typer.run(main)
