"""What a comparison shows, in two sentences made from its data, and what it does not show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.analysis.paired import Difference, differences
from pause_jax.analysis.prose import listed, quoted


class Aim(NamedTuple):
    """What configs are judged by.

    Attributes:
      title: of a column.
      values: [config, seed]; NaN where there is none.
      sign: 1 if more is better, -1 if less is.
      unit: of the values, ``digits`` of them after the point.
      digits: see there.
      gap: unit of a difference.
      best, plain: what is said of the best config, and of any.
      its: what is said of a config that was named before.
      better, worse: than another.
      did, missing: what those did that have a value, and those that have none.
    """

    title: str
    values: xr.DataArray
    sign: int
    unit: str
    digits: int
    gap: str
    best: str
    plain: str
    its: str
    better: str
    worse: str
    did: str
    missing: str

    def said(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:,.{self.digits}f}{self.unit}"


class Comparison(NamedTuple):
    """Configs against one of them.

    Attributes:
      against: that one; empty if there is nothing to judge by.
      aims: what they are judged by, the first one first.
      comparisons: differences that might have been asked for, which their intervals allow for.
      differences: of each aim, by config.
      sentences: at most two.
    """

    against: str
    aims: tuple[Aim, ...]
    comparisons: int
    differences: tuple[dict[str, Difference], ...]
    sentences: tuple[str, ...]


def compare(result: xr.Dataset, target: float, against: str | None = None) -> Comparison:
    """Judge the configs of a sweep.

    Args:
      result: from ``sweep``: same seeds are same worlds.
      target: accuracy whose time is asked for, in (0, 1].
      against: the config to compare with. Else the best on average by the first aim that it has a
        value of in every seed; if some configs promise privacy for all that clients send, the best
        of those.

    Returns:
      The comparison. A config that broke its contract has no values.

    Raises:
      ConfigError: for a bad target, or if there is no config ``against``.
    """
    goals = aims(result, target)
    names = [str(name) for name in result.config.values]
    private = result.config.values[(result.epsilon_unit != "none") & (result.unnoised == "")]
    candidates = [str(name) for name in private] or names
    chosen = _best(goals, candidates) if against is None else against
    if not chosen:
        text = f"No config {goals[0].did} in every seed, so nothing is compared."
        return Comparison("", goals, 0, tuple({} for _ in goals), (text,))
    # Any of the candidates might have been the best: all pairs with one of them count.
    others, rivals = len(names) - 1, len(candidates) - 1
    comparisons = others if against else others + rivals * (2 * others - rivals - 1) // 2
    found = tuple(differences(aim.values, chosen, comparisons=comparisons) for aim in goals)
    scope = ""
    if against is None and len(candidates) < len(names):
        scope = "of the configs whose epsilon covers all that clients send, "
    sentences = _sentences(goals, found, chosen, scope, named=against is not None)
    return Comparison(chosen, goals, comparisons, found, sentences)


def aims(result: xr.Dataset, target: float) -> tuple[Aim, ...]:
    """What the configs of a sweep are judged by: accuracy, else loss, else regret."""
    goal = f"{100 * target:g} %"
    seconds = Aim(
        *("seconds in all", metrics.simulated_seconds(result), -1, " s", 1, " s"),
        *("took the fewest simulated seconds on average", "took", "Its simulated seconds in all"),
        *("fewer than", "more than", "was played", "broke its contract"),
    )
    finite = "ended with a finite model", "ended without a finite model in some seed"
    if np.isfinite(result.test_accuracy).any():
        found: tuple[Aim, ...] = (
            Aim(
                *(f"s to {goal}", metrics.time_to_accuracy(result, target), -1, " s", 1, " s"),
                *(f"reached {goal} test accuracy first on average", f"reached {goal}"),
                *("It reached the target", "sooner than", "later than"),
                *(f"reached {goal}", f"did not reach {goal} in every seed"),
            ),
            Aim(
                *("end accuracy, %", 100 * metrics.final_accuracy(result), 1, " %", 1, " points"),
                *("ended with the highest test accuracy on average", "ended with a test accuracy"),
                *("Its test accuracy at the end", "higher than", "lower than", *finite),
            ),
        )
    elif np.isfinite(result.test_loss).any():
        loss = Aim(
            *("end loss", metrics.final_loss(result), -1, "", 4, ""),
            *("ended with the least test loss on average", "ended with a test loss"),
            *("Its test loss at the end", "lower than", "higher than", *finite),
        )
        found = (loss, seconds)
    elif np.isfinite(result.regret).any():
        regret = Aim(
            *("regret", metrics.total_regret(result), -1, "", 1, ""),
            *("had the least regret on average", "had a regret", "Its regret"),
            *("less than", "more than", "had a regret", "broke its contract"),
        )
        found = (regret, seconds)
    else:
        found = (seconds,)
    whole = result.first_broken_round <= 0
    return tuple(aim._replace(values=aim.values.where(whole)) for aim in found)


def _best(goals: Iterable[Aim], candidates: list[str]) -> str:
    """The best of the candidates that have a value in every seed; empty if none has."""
    for goal in goals:
        mean = goal.sign * goal.values.sel(config=candidates).mean("seed", skipna=False)
        if np.isfinite(mean).any():
            return str(mean.idxmax("config").item())
    return ""


def _sentences(
    goals: tuple[Aim, ...],
    found: tuple[dict[str, Difference], ...],
    against: str,
    scope: str,
    *,
    named: bool,
) -> tuple[str, ...]:
    sentences, met = [], False
    for goal, others in zip(goals, found, strict=True):
        ours = goal.values.sel(config=against)
        if bool(ours.isnull().any()):
            whom = f"{quoted(against)} {goal.missing}" if named else ""
            text = whom or f"{scope}{'none' if scope else 'no config'} {goal.did} in every seed"
        else:
            value = f"({goal.said(float(ours.mean()))}, {_seeds(ours.size)})"
            opening = f"{scope}{quoted(against)} {goal.plain if named else goal.best}"
            parts = _parts(goal, others) or ["nothing to compare it with"]
            text = f"{goal.its if met else opening} {value}: {'; '.join(parts)}"
            met = True
        sentences.append(f"{_capital(text, against)}.")
    return tuple(sentences)


def _parts(goal: Aim, others: dict[str, Difference]) -> list[str]:
    """What the differences show, and what they do not."""
    parts = []
    for sign, words in ((-goal.sign, goal.better), (goal.sign, goal.worse)):
        shown = [
            f"{quoted(name)} (by {_interval(each, goal)})"
            for name, each in others.items()
            if each.shown == sign
        ]
        if shown:
            parts.append(f"{words} {listed(shown)}")
    undecided = {n: d for n, d in others.items() if not d.shown and d.pairs == d.seeds}
    if undecided:
        seeds = next(iter(undecided.values())).seeds
        these = f"these {seeds} seeds" if seeds > 1 else "one seed"
        names = listed([quoted(name) for name in undecided])
        parts.append(f"no difference from {names} that {these} could show")
    if gone := [quoted(name) for name, each in others.items() if each.pairs < each.seeds]:
        parts.append(f"{listed(gone)} {goal.missing}")
    return parts


def _interval(each: Difference, goal: Aim) -> str:
    """A difference without its sign, which stands in the words."""
    ends = sorted((abs(each.low), abs(each.high)))
    mean, low, high = (f"{value:,.{goal.digits}f}" for value in (abs(each.mean), *ends))
    return f"{mean}{goal.gap}, {low} to {high}"


def _seeds(number: int) -> str:
    return f"mean of {number} seeds" if number > 1 else "one seed"


def _capital(text: str, name: str) -> str:
    """A capital at the start of a sentence, but not of a name."""
    return text if text.startswith(quoted(name)) else text[0].upper() + text[1:]
