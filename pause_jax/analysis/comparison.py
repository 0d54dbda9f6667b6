"""Paired differences between a sweep's configs, and a text summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from pause_jax.analysis import metrics
from pause_jax.base.struct import ConfigError

__all__ = ["Difference", "differences", "seeds_needed"]

# Required probability that a t-interval over ``seeds_needed`` seeds excludes the tested bound.
POWER = 0.8
# Suggest a number of seeds only if it is below this limit, because few users could run more.
_MANY_SEEDS = 1000


class Aim(NamedTuple):
    """Criterion by which configs are compared."""

    title: str  # column heading
    values: xr.DataArray  # [config, seed], NaN for missing values
    sign: int  # 1 if higher values are better, else -1
    noun: str  # noun phrase for the values, e.g. "simulated time"
    better: str  # comparative for a better value, e.g. "sooner"
    worse: str  # comparative for a worse value
    missing: str  # verb phrase for a config that lacks a value for at least one seed
    unit: str = ""  # suffix of each value
    digits: int = 1  # decimal places


class Difference(NamedTuple):
    """Paired difference between a config and the reference config.

    Attributes:
      mean: mean paired difference, in the values' unit, or NaN if there are no pairs.
      low, high: endpoints of the confidence interval, or NaN if there are fewer than two pairs.
      needed: estimated number of seeds required for a significant difference
        (:func:`seeds_needed`), or NaN if there are fewer than two pairs.
      pairs: number of seeds for which both configs have a value.
      seeds: total number of seeds.
    """

    mean: float
    low: float
    high: float
    needed: float
    pairs: int
    seeds: int

    @property
    def shown(self) -> int:
        """Sign of the difference (1 or -1), or 0 if the confidence interval does not exclude 0.

        Always 0 if any pair is incomplete, because the compared seeds then depend on the outcomes.
        """
        return 0 if self.pairs < self.seeds else (self.low > 0) - (self.high < 0)


class Comparison(NamedTuple):
    """Comparison of all configs with a reference config."""

    against: str  # reference config, or "" if no candidate has a value for every seed
    aims: tuple[Aim, ...]  # in order of priority
    comparisons: int  # number of intervals that hold jointly
    differences: tuple[dict[str, Difference], ...]  # one dict per aim, keyed by config
    text: str  # conclusions for the first aim for which ``against`` has a value for every seed


def compare(result: xr.Dataset, target: float, against: str | None = None) -> Comparison:
    """Compare the configs of a sweep with a reference config.

    Args:
      result: data set from ``sweep``, in which all configs use the same random keys.
      target: target test accuracy for the time-to-target criterion, in (0, 1].
      against: reference config. The default is the best candidate under the first criterion for
        which at least one candidate has values for all seeds. Candidates are configs whose
        epsilon covers everything clients send except data sizes, or all configs if none qualify.

    Returns:
      The comparison. Values are missing for runs that broke a contract (``run.contract``).

    Raises:
      ConfigError: if the target is not in (0, 1], or the result has no config named ``against``.
    """
    goals = _aims(result, target)
    names = [str(name) for name in result.config.values]
    private = result.config.values[(result.epsilon_unit != "none") & (result.unnoised == "")]
    candidates = [str(name) for name in private] or names
    chosen = _best(goals, candidates) if against is None else against
    if not chosen:
        kind = "config" if len(candidates) == len(names) else "private config"
        text = f"No comparison: no {kind} has a value for every seed."
        return Comparison("", goals, 0, tuple({} for _ in goals), text)
    # Any candidate could have become the reference, so count every pair that includes a candidate.
    others = len(names) - 1
    rivals = len(candidates) - 1
    comparisons = others if against else others + rivals * (2 * others - rivals - 1) // 2
    found = tuple(differences(aim.values, chosen, comparisons=comparisons) for aim in goals)
    best = lead = ""
    if against is None and len(candidates) == len(names):
        best = " (the best)"
    elif against is None:
        words = "the best config whose epsilon covers everything clients send except data sizes"
        lead = f"{quoted(chosen)} is {words}. "
    text = f"No comparison: {quoted(chosen)} {goals[0].missing}."
    for goal, each in zip(goals, found, strict=True):
        if goal.values.sel(config=chosen).notnull().all():
            findings = f" {lead}{_findings(goal, each, chosen, best)}" if each else ""
            text = f"{_means(goal)}.{findings}"
            break
    return Comparison(chosen, goals, comparisons, found, text)


def differences(
    values: xr.DataArray, against: str, *, comparisons: int | None = None
) -> dict[str, Difference]:
    """Compute each config's difference from a reference config, with a paired t-interval.

    All intervals hold jointly with 95 % confidence (Bonferroni correction).

    Args:
      values: [config, seed], NaN for missing values (e.g. if a run never reached the target).
      against: reference config.
      comparisons: number of intervals that must hold jointly. The default, the number of other
        configs, is valid if ``against`` was chosen in advance. If ``against`` was chosen because
        it performed best, pass the number of config pairs.

    Returns:
      Differences from ``against``, keyed by the other configs' names, in the order of ``values``.

    Raises:
      ConfigError: if ``values`` has no config named ``against``.
    """
    from scipy import special

    names = [str(name) for name in values.config.values]
    if against not in names:
        raise ConfigError(f"against = {against!r}: must be one of {', '.join(names)}.")
    ours = values.sel(config=against).values.astype(float)
    others = [name for name in names if name != against]
    level = (1 - 0.95) / max(comparisons or len(others), 1)
    found = {}
    for name in others:
        each = values.sel(config=name).values.astype(float) - ours
        each = each[np.isfinite(each)]
        number = each.size
        mean = float(each.mean()) if number else math.nan
        half = needed = math.nan
        if number > 1:
            spread = float(each.std(ddof=1))
            half = float(special.stdtrit(number - 1, 1 - level / 2)) * spread / math.sqrt(number)
            needed = seeds_needed(abs(mean), spread, level, number)
        found[name] = Difference(mean, mean - half, mean + half, needed, number, ours.size)
    return found


def seeds_needed(distance: float, spread: float, level: float, seeds: int) -> float:
    """Return the number of seeds needed for a t-interval to exclude a bound with 80 % probability.

    Args:
      distance: measured distance between the mean and the bound, treated as the true distance.
      spread: measured standard deviation over seeds, treated as the true standard deviation.
      level: probability that an interval misses the true mean.
      seeds: lower limit on the number of seeds returned; must be >= 2.

    Returns:
      Number of seeds required, or infinity if more than about a million are required.
    """
    from scipy import special

    luck, z = special.ndtri(POWER), special.ndtri(1 - level / 2)
    if not distance or (z + luck) * spread > 1000 * distance:
        return math.inf
    # Student's t quantile exceeds the normal quantile, so a few more seeds are needed.
    found = max(seeds, math.ceil(((z + luck) * spread / distance) ** 2))
    while (special.stdtrit(found - 1, 1 - level / 2) + luck) * spread > distance * found**0.5:
        found += 1
    return found


def quoted(name: str) -> str:
    """Return a config's name, quoted unless it contains only letters, digits and underscores."""
    return name if name.replace("_", "").isalnum() else f"'{name}'"


def listed(names: Iterable[str], number: int = 4, word: str = "and") -> str:
    """Join names as "a, b and c". Replace names after the first ``number`` with "N more"."""
    shown = list(names)
    if len(shown) > number:
        shown = [*shown[:number], f"{len(shown) - number} more"]
    return ", ".join(shown[:-1]) + (f" {word} " if len(shown) > 1 else "") + shown[-1]


def _aims(result: xr.Dataset, target: float) -> tuple[Aim, ...]:
    """Return the criteria that the recorded metrics support, in order of priority."""
    goal = f"{100 * target:g} %"
    not_finite = "broke a contract or ended with a non-finite model for at least one seed"
    to_target = Aim(
        title=f"s to {goal}",
        values=metrics.time_to_accuracy(result, target),
        sign=-1,
        noun=f"time to {goal} test accuracy",
        better="sooner",
        worse="later",
        missing=f"missed {goal} for at least one seed",
        unit=" s",
    )
    accuracy = Aim(
        title="final, %",
        values=100 * metrics.final_accuracy(result),
        sign=1,
        noun="final test accuracy",
        better="higher",
        worse="lower",
        missing=not_finite,
        unit=" %",
    )
    regret = Aim(
        title="regret",
        values=metrics.total_regret(result),
        sign=-1,
        noun="regret",
        better="lower",
        worse="higher",
        missing="broke a contract or recorded no regret for at least one seed",
    )
    loss = regret._replace(
        title="final loss",
        values=metrics.final_loss(result),
        noun="final test loss",
        missing=not_finite,
        digits=4,
    )
    seconds = to_target._replace(
        title="total s",
        values=metrics.simulated_seconds(result),
        noun="simulated time",
        better="shorter",
        worse="longer",
        missing="broke a contract for at least one seed",
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
    """Return the best candidate with a value for every seed, or an empty string if none exists."""
    for goal in goals:
        mean = goal.sign * goal.values.sel(config=candidates).mean("seed", skipna=False)
        if np.isfinite(mean).any():
            return str(mean.idxmax("config").item())
    return ""


def _means(goal: Aim) -> str:
    """List the means, best first, then the configs that lack a value for at least one seed."""
    means = goal.sign * goal.values.mean("seed", skipna=False)
    known = means.config.values[means.notnull()]
    order = sorted(known, key=lambda name: -float(means.sel(config=name)))
    each = [
        f"{abs(float(means.sel(config=name))):,.{goal.digits}f}{goal.unit} for {quoted(str(name))}"
        for name in order
    ]
    seeds = goal.values.sizes["seed"]
    start = f"Mean {goal.noun} over {seeds} seeds" if seeds > 1 else f"{goal.noun} with one seed"
    text = f"{start[0].upper()}{start[1:]}: {listed(each)}"
    if missing := [quoted(str(name)) for name in means.config.values if name not in order]:
        text += f"; {listed(missing)} {goal.missing}"
    return text


def _findings(goal: Aim, others: dict[str, Difference], against: str, best: str) -> str:
    """Describe which configs differ significantly from ``against``, and by how much."""
    seeds = next(iter(others.values())).seeds
    shown = [
        f"{quoted(name)} ({_difference(each, goal)})" for name, each in others.items() if each.shown
    ]
    undecided = {
        quoted(name): each
        for name, each in others.items()
        if each.pairs == each.seeds and not each.shown
    }
    name = f"{quoted(against)}{best}"
    do = "does" if len(undecided) == 1 else "do"
    needed = [
        f"about {each.needed:.0f} for {other}"
        for other, each in undecided.items()
        if each.needed < _MANY_SEEDS
    ]
    settled = f" Number of seeds that would probably suffice: {listed(needed)}." if needed else ""
    if shown:
        differ = "differs" if len(shown) == 1 else "differ"
        text = f"Over {seeds} seeds, {listed(shown)} {differ} significantly from {name}"
        return text + (f"; {listed(undecided)} {do} not." if undecided else ".") + settled
    if undecided and seeds == 1:
        return f"One seed cannot show whether {name} differs from {listed(undecided, word='or')}."
    if undecided:
        text = f"Over {seeds} seeds, {listed(undecided)} {do} not differ significantly from {name}."
        return text + settled
    return "No other config has a value for every seed."


def _difference(each: Difference, goal: Aim) -> str:
    ends = sorted((abs(each.low), abs(each.high)))
    mean, low, high = (f"{value:,.{goal.digits}f}" for value in (abs(each.mean), *ends))
    unit = " points" if goal.unit == " %" else goal.unit
    direction = goal.better if each.shown == goal.sign else goal.worse
    return f"{mean}{unit} {direction}, 95 % CI {low} to {high}"
