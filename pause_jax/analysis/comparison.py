"""Compare configs in the same worlds: paired differences, and sentences on what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pause_jax.analysis import metrics
from pause_jax.base.struct import ConfigError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Difference", "differences"]

# Names listed one by one; the rest is counted.
_LISTED = 4


class Aim(NamedTuple):
    """What configs are judged by."""

    title: str  # of a column
    values: xr.DataArray  # [config, seed]; NaN where there is none
    sign: int  # 1 if more is better, -1 if less is
    noun: str  # what the values are
    better: str  # than another config
    worse: str
    missing: str  # what is said of a config without a value in some seed
    unit: str = ""  # of the values and of their differences
    digits: int = 1  # after the point


class Difference(NamedTuple):
    """How much more a config has of something than the one that it is compared with.

    Attributes:
      mean: over the pairs, in the unit of the values; NaN without a pair.
      low, high: ends of its confidence interval; NaN with fewer than two pairs.
      pairs: seeds in which both have a value.
      seeds: all seeds.
    """

    mean: float
    low: float
    high: float
    pairs: int
    seeds: int

    @property
    def shown(self) -> int:
        """1 or -1 if the seeds show that the true difference is above or below 0; 0 if they do not.

        Never where a seed is left out: those that are left were chosen by their outcome.
        """
        if self.pairs < self.seeds:
            return 0
        return (self.low > 0) - (self.high < 0)


class Comparison(NamedTuple):
    """Configs compared with one of them."""

    against: str  # that config; empty if no config has values
    aims: tuple[Aim, ...]  # what they are judged by, the first one first
    comparisons: int  # differences that might have been asked for, which their intervals allow for
    differences: tuple[dict[str, Difference], ...]  # of each aim, by config
    text: str  # by the first aim that ``against`` has values of: what was seen, what it shows


def compare(result: xr.Dataset, target: float, against: str | None = None) -> Comparison:
    """Compare the configs of a sweep with one of them.

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
    goals = _aims(result, target)
    names = [str(name) for name in result.config.values]
    private = result.config.values[(result.epsilon_unit != "none") & (result.unnoised == "")]
    candidates = [str(name) for name in private] or names
    chosen = _best(goals, candidates) if against is None else against
    if not chosen:
        text = "No config has a value in every seed, so nothing is compared."
        return Comparison("", goals, 0, tuple({} for _ in goals), text)
    # Any of the candidates might have been the best: all pairs with one of them count.
    others = len(names) - 1
    rivals = len(candidates) - 1
    comparisons = others if against else others + rivals * (2 * others - rivals - 1) // 2
    found = tuple(differences(aim.values, chosen, comparisons=comparisons) for aim in goals)
    best = lead = ""
    if against is None and len(candidates) == len(names):
        best = ", the best"
    elif against is None:
        lead = f"{quoted(chosen)} is the best config whose epsilon covers all that clients send. "
    return Comparison(chosen, goals, comparisons, found, _text(goals, found, chosen, best, lead))


def differences(
    values: xr.DataArray, against: str, *, comparisons: int | None = None
) -> dict[str, Difference]:
    """Of every other config to one, over the same seeds: mean and paired t-interval.

    All intervals hold together with 95 % confidence (Bonferroni).

    Args:
      values: [config, seed]; NaN where there is none, say a target that was never reached.
      against: the config that all are compared with.
      comparisons: how many differences might have been asked for. The number of other configs, if
        ``against`` was chosen beforehand; of all pairs, if it was chosen because it looked best.

    Returns:
      By config, in their order, without ``against``.

    Raises:
      ConfigError: if there is no such config.
    """
    from scipy import special

    names = [str(name) for name in values.config.values]
    if against not in names:
        raise ConfigError(f"against = {against!r}: must be one of {', '.join(names)}.")
    ours = values.sel(config=against).values.astype(float)
    others = [name for name in names if name != against]
    tail = (1 - 0.95) / 2 / max(comparisons or len(others), 1)
    found = {}
    for name in others:
        each = values.sel(config=name).values.astype(float) - ours
        each = each[np.isfinite(each)]
        number = each.size
        mean = float(each.mean()) if number else math.nan
        half = math.nan
        if number > 1:
            error = float(each.std(ddof=1)) / math.sqrt(number)
            half = float(special.stdtrit(number - 1, 1 - tail)) * error
        found[name] = Difference(mean, mean - half, mean + half, number, ours.size)
    return found


def quoted(name: str) -> str:
    """A config's name; in quotation marks if it is not one word, as ``all, no privacy``."""
    return name if name.replace("_", "").isalnum() else f"'{name}'"


def listed(names: Sequence[str], number: int = _LISTED, word: str = "and") -> str:
    """Names as a list: a, b and c; what is beyond ``number`` is counted."""
    shown = list(names)
    if len(shown) > number:
        shown = [*shown[:number], f"{len(shown) - number} more"]
    return ", ".join(shown[:-1]) + (f" {word} " if len(shown) > 1 else "") + shown[-1]


def _aims(result: xr.Dataset, target: float) -> tuple[Aim, ...]:
    """What the configs of a sweep are judged by: accuracy, else loss, else regret."""
    goal = f"{100 * target:g} %"
    not_finite = "ended without a finite model in some seed"
    to_target = Aim(
        title=f"s to {goal}",
        values=metrics.time_to_accuracy(result, target),
        sign=-1,
        noun=f"time to {goal} test accuracy",
        better="sooner",
        worse="later",
        missing=f"did not reach {goal} in every seed",
        unit=" s",
    )
    accuracy = Aim(
        title="end, %",
        values=100 * metrics.final_accuracy(result),
        sign=1,
        noun="test accuracy at the end",
        better="higher",
        worse="lower",
        missing=not_finite,
        unit=" %",
    )
    loss = Aim(
        title="end loss",
        values=metrics.final_loss(result),
        sign=-1,
        noun="test loss at the end",
        better="lower",
        worse="higher",
        missing=not_finite,
        digits=4,
    )
    regret = Aim(
        title="regret",
        values=metrics.total_regret(result),
        sign=-1,
        noun="regret",
        better="lower",
        worse="higher",
        missing="broke its contract",
    )
    seconds = regret._replace(
        title="s in all",
        values=metrics.simulated_seconds(result),
        noun="simulated time",
        better="shorter",
        worse="longer",
        unit=" s",
    )
    goals: tuple[Aim, ...] = (seconds,)
    if np.isfinite(result.test_accuracy).any():
        goals = (to_target, accuracy)
    elif np.isfinite(result.test_loss).any():
        goals = (loss, seconds)
    elif np.isfinite(result.regret).any():
        goals = (regret, seconds)
    whole = result.first_broken_round <= 0
    return tuple(aim._replace(values=aim.values.where(whole)) for aim in goals)


def _best(goals: Sequence[Aim], candidates: list[str]) -> str:
    """The best of the candidates that have a value in every seed; empty if none has."""
    for goal in goals:
        mean = goal.sign * goal.values.sel(config=candidates).mean("seed", skipna=False)
        if np.isfinite(mean).any():
            return str(mean.idxmax("config").item())
    return ""


def _text(
    goals: Sequence[Aim],
    found: Sequence[dict[str, Difference]],
    against: str,
    best: str,
    lead: str,
) -> str:
    """What was seen of the first aim that ``against`` has a value of in every seed, and which of
    the differences the seeds settle.
    """
    for goal, others in zip(goals, found, strict=True):
        if bool(goal.values.sel(config=against).notnull().all()):
            settled = f" {lead}{_settled(goal, others, against, best)}" if others else ""
            return f"{_seen(goal)}.{settled}"
    return f"{quoted(against)} {goals[0].missing}, so nothing is compared."


def _seen(goal: Aim) -> str:
    """The means, the best first, of the configs that have a value in every seed."""
    means = goal.sign * goal.values.mean("seed", skipna=False)
    order = sorted(
        means.config.values[means.notnull()], key=lambda name: -float(means.sel(config=name))
    )
    each = [
        f"{abs(float(means.sel(config=name))):,.{goal.digits}f}{goal.unit} for {quoted(str(name))}"
        for name in order
    ]
    seeds = goal.values.sizes["seed"]
    start = f"Mean {goal.noun} over {seeds} seeds" if seeds > 1 else f"In one seed, {goal.noun}"
    text = f"{start}: {listed(each)}"
    if missing := [quoted(str(name)) for name in means.config.values if name not in order]:
        text += f"; {listed(missing)} {goal.missing}"
    return text


def _settled(goal: Aim, others: dict[str, Difference], against: str, best: str) -> str:
    seeds = next(iter(others.values())).seeds
    count = f"{seeds} seeds" if seeds > 1 else "one seed"
    shown = [
        f"{quoted(name)} {goal.better if each.shown == goal.sign else goal.worse} "
        f"by {_interval(each, goal)}"
        for name, each in others.items()
        if each.shown
    ]
    undecided = [
        quoted(name) for name, each in others.items() if each.pairs == each.seeds and not each.shown
    ]
    name = f"{quoted(against)}{best}"
    if shown:
        text = f"Against {name}, {count} show {listed(shown)}"
        return text + (f"; they do not settle {listed(undecided)}." if undecided else ".")
    if undecided:
        comma = "," if best else ""
        start = f"{count[0].upper()}{count[1:]} {'do' if seeds > 1 else 'does'} not settle"
        return f"{start} whether {name}{comma} differs from {listed(undecided, word='or')}."
    return f"No other config is left to compare {quoted(against)} with."


def _interval(each: Difference, goal: Aim) -> str:
    """A difference without its sign, which stands in the words."""
    ends = sorted((abs(each.low), abs(each.high)))
    mean, low, high = (f"{value:,.{goal.digits}f}" for value in (abs(each.mean), *ends))
    unit = " points" if goal.unit == " %" else goal.unit
    return f"{mean}{unit} ({low} to {high} at 95 %)"
