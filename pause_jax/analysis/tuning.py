"""Search for the numbers of a config that are best by some objective, in one compiled program.

Every generation of trials is one batch of the same shape over the same seeds, so nothing is
compiled twice and trials are compared in the same worlds. Proposing is left to Optuna (the extra
``tune``), or to chance. The best are played again with seeds that the search has not seen: the best
of many noisy figures is too good to be true.
"""

from __future__ import annotations

import itertools
import math
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jax import Array
from numpy.typing import NDArray

from pause_jax.analysis.space import Axis, Objective, check_defined
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig
from pause_jax.learning import Dataset
from pause_jax.run import contract
from pause_jax.sweep.sweep import sweep

METHODS = ("tpe", "random", "halving")
# Configs that are played again with fresh seeds, beside the one that the search began with.
FINALISTS = 3

Floats = NDArray[np.float64]


class Trial(NamedTuple):
    """A config that was tried.

    Attributes:
      values: by path.
      scores: float [seeds], its objective in each; NaN where the run has none: the model was not
        finite, the target was never reached, or a custom part broke its contract.
      near: float [seeds], how near each run came to a score (``Objective.near``).
    """

    values: dict[str, float]
    scores: Floats
    near: Floats

    @property
    def scored(self) -> Floats:
        """The scores of the seeds that have one."""
        return self.scores[np.isfinite(self.scores)]

    @property
    def is_complete(self) -> bool:
        """Whether every seed has a score."""
        return self.scored.size == self.scores.size

    @property
    def mean(self) -> float:
        """Over the seeds that have a score; NaN if none has."""
        return float(self.scored.mean()) if self.scored.size else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN of fewer than two scores."""
        number = self.scored.size
        return float(self.scored.std(ddof=1) / math.sqrt(number)) if number > 1 else math.nan


# Above every mean that a complete trial can have.
_INCOMPLETE = 1e300


def badness(trial: Trial, sign: int) -> float:
    """The order of trials, the best the lowest: of proposals, rungs, finalists and the choice.

    A trial with a score in every seed counts by its mean. Any other is worse: the more, the fewer
    of its seeds have a score; then by the mean of those; if none has, by how near they came.

    Args:
      trial: what was tried.
      sign: 1 if its objective is to be small, -1 if large.
    """
    if trial.is_complete:
        return sign * trial.mean
    rest = sign * trial.mean if trial.scored.size else -float(trial.near.mean())
    return _INCOMPLETE * (1 + 2 * (trial.scores.size - trial.scored.size) + rest / (1 + abs(rest)))


class Tuned(NamedTuple):
    """What a search found.

    Attributes:
      best: the config that is best among the finalists with the fresh seeds (:func:`badness`); the
        one that the search began with, unless another is better.
      trials: all that were tried, in order.
      finalists: the best of the trials, best first, and what they scored with fresh seeds; the
        last one is the config that the search began with.
      chosen: place of ``best`` among them.
    """

    best: SimConfig
    trials: list[Trial]
    finalists: list[tuple[Trial, Trial]]
    chosen: int

    @property
    def curse(self) -> float:
        """By how much the best of the search is worse with fresh seeds, in units of the objective;
        the sign is that of the difference. NaN if no seed has a score.
        """
        seen, fresh = self.finalists[0]
        return fresh.mean - seen.mean


def tune(
    config: SimConfig,
    axes: Sequence[Axis],
    objective: Objective,
    key: Array,
    *,
    budget: int = 64,
    seeds: int = 3,
    width: int = 8,
    method: str = "tpe",
    data: Dataset | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Tuned:
    """Search for the best numbers.

    Args:
      config: where the search begins; it is played against the best at the end.
      axes: what is varied.
      objective: by what it is judged, as the mean over seeds.
      key: of the search's seeds, the fresh ones and the proposals.
      budget: configs to try; under ``halving`` as many runs as these would take.
      seeds: runs of each.
      width: configs tried side by side. ``tpe`` proposes as many at a time.
      method: ``tpe`` (Optuna's tree-structured Parzen estimator), ``random``, or ``halving``:
        random configs with one seed, of which the better half goes on with twice as many new
        seeds, until two are left.
      data: as in ``sweep``.
      store: a folder that keeps what is played, as in ``sweep``; the same search goes on there.
      progress: show a progress bar for each batch.

    Returns:
      What was found; the fresh seeds are ``width * seeds / 4`` at least.

    Raises:
      ConfigError: before any run, if something cannot run, or the objective is not defined for the
        config.

    Warns:
      BrokenContract: once, at the end, if a custom part broke its contract with the fresh seeds.
    """
    _check(axes, budget, seeds, width, method)
    check_defined(objective, config, data)
    search_key, fresh_key = jax.random.split(key)
    generations = itertools.count()
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())

    def play(points: list[dict[str, float]], keys: Array, *, last: bool = False) -> list[Trial]:
        configs = [config.override(values) for values in points]
        # The same scores propose the same configs again, so each generation finds its own.
        kept = None if store is None else pathlib.Path(store) / f"{next(generations):03}"
        with warnings.catch_warnings():
            if not last:
                warnings.simplefilter("ignore", contract.BrokenContract)
            result = sweep(
                *(configs, keys),
                data=data,
                record=(*objective.record, *contract.RECORDED),
                store=kept,
                progress=progress,
            )
        scores = objective.value(result).where(result.first_broken_round <= 0)
        near = xr.zeros_like(scores) if objective.near is None else objective.near(result)
        each = zip(points, *(x.values.astype(np.float64) for x in (scores, near)), strict=True)
        return [Trial(*trial) for trial in each]

    def order(trial: Trial) -> float:
        return badness(trial, objective.sign)

    if method == "halving":
        trials = _halving(axes, budget * seeds, search_key, rng, order, play)
    else:
        keys = jax.random.split(search_key, seeds)
        propose = _tpe if method == "tpe" else _random
        trials = list(propose(axes, budget, width, rng, order, lambda p: play(p, keys)))
    most = max(trial.scores.size for trial in trials)
    best = sorted((trial for trial in trials if trial.scores.size == most), key=order)[:FINALISTS]
    fresh = max(2, width * seeds // (FINALISTS + 1))
    began = {axis.path: float(np.float32(_value(config, axis.path))) for axis in axes}
    points = [*(trial.values for trial in best), began]
    again = play(points, jax.random.split(fresh_key, fresh), last=True)
    unknown = np.full(1, np.nan)
    # Of equals the last, which is where the search began.
    chosen = min(reversed(range(len(points))), key=lambda i: order(again[i]))
    return Tuned(
        best=config if chosen == len(best) else config.override(points[chosen]),
        trials=trials,
        finalists=list(zip([*best, Trial(began, unknown, unknown)], again, strict=True)),
        chosen=chosen,
    )


def _check(axes: Sequence[Axis], budget: int, seeds: int, width: int, method: str) -> None:
    if not axes:
        raise ConfigError("--vary is missing: name at least one number to tune.")
    paths = [axis.path for axis in axes]
    if len(set(paths)) < len(paths):
        raise ConfigError(f"--vary: {max(paths, key=paths.count)} is varied twice.")
    for name, value, least in (
        ("budget", budget, FINALISTS),
        ("seeds", seeds, 1),
        ("width", width, 1),
    ):
        if value < least:
            raise ConfigError(f"--{name} {value}: must be >= {least}.")
    if method not in METHODS:
        raise ConfigError(f"--method {method}: must be one of {', '.join(METHODS)}.")
    if method == "tpe":
        try:
            import optuna  # noqa: F401
        except ImportError:
            raise ConfigError(
                "--method tpe: needs Optuna, pip install 'pause_jax[tune]'; or take --method "
                "random."
            ) from None


def _value(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


Play = Callable[[list[dict[str, float]]], list[Trial]]
Order = Callable[[Trial], float]


def _drawn(axes: Sequence[Axis], rng: np.random.Generator) -> dict[str, float]:
    return {axis.path: axis.at(rng.random()) for axis in axes}


def _random(
    axes: Sequence[Axis],
    budget: int,
    width: int,
    rng: np.random.Generator,
    order: Order,
    play: Play,
) -> Iterator[Trial]:
    for first in range(0, budget, width):
        points = [_drawn(axes, rng) for _ in range(width)]
        yield from play(points)[: budget - first]


def _tpe(
    axes: Sequence[Axis],
    budget: int,
    width: int,
    rng: np.random.Generator,
    order: Order,
    play: Play,
) -> Iterator[Trial]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=max(width, budget // 4),
        multivariate=True,
        constant_liar=True,  # those of one generation keep apart
        seed=int(rng.integers(2**31)),
    )
    study = optuna.create_study(sampler=sampler)
    space: dict[str, Any] = {
        axis.path: optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)
        for axis in axes
    }
    for first in range(0, budget, width):
        asked = [study.ask(space) for _ in range(width)]
        points = [{name: float(np.float32(x)) for name, x in each.params.items()} for each in asked]
        trials = play(points)
        for each, trial in zip(asked, trials, strict=True):
            study.tell(each, order(trial))
        yield from trials[: budget - first]


def _halving(
    axes: Sequence[Axis],
    runs: int,
    key: Array,
    rng: np.random.Generator,
    order: Order,
    play: Callable[[list[dict[str, float]], Array], list[Trial]],
) -> list[Trial]:
    """Rungs of equally many runs: half the configs, twice as many new seeds each time."""
    rungs = max(1, int(math.log2(max(runs, 2))) - 2)
    per_rung = max(2, 2 ** int(math.log2(max(runs / rungs, 2))))
    trials, done = list[Trial](), 0
    rung = [Trial(_drawn(axes, rng), np.zeros(0), np.zeros(0)) for _ in range(per_rung)]
    while True:
        seeds = per_rung // len(rung)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(done, done + seeds))
        new = play([trial.values for trial in rung], keys)
        rung = [
            Trial(a.values, np.append(a.scores, b.scores), np.append(a.near, b.near))
            for a, b in zip(rung, new, strict=True)
        ]
        if len(rung) <= FINALISTS + 1:
            return [*trials, *rung]
        rung = sorted(rung, key=order)
        half = len(rung) // 2
        trials += rung[half:]
        rung, done = rung[:half], done + seeds
