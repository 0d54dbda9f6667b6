"""Search for the numbers of a config that are best by some objective, in one compiled program.

Every generation of trials is one batch of the same shape over the same seeds: nothing compiles
twice, and trials are compared in the same worlds. Optuna (the extra ``tune``) proposes. Processes
that share a store run different generations at the same time. The best run again with seeds that
the search has not seen: the best of many noisy figures is too good to be true.
"""

from __future__ import annotations

import itertools
import math
import os
import pathlib
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jax import Array
from numpy.typing import NDArray

from pause_jax.analysis.space import Axis, Objective, check_defined
from pause_jax.analysis.study import LOOK_EVERY, Study
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, config_file
from pause_jax.learning import Dataset
from pause_jax.run import contract
from pause_jax.sweeps.sweep import sweep

METHODS = ("tpe", "random", "halving")
# Configs that run again with fresh seeds, beside the initial one.
FINALISTS = 3

Floats = NDArray[np.float64]


class Search(NamedTuple):
    """How to search.

    Attributes:
      budget: configs to try; under ``halving`` as many runs as these would take.
      seeds: runs of each.
      width: configs tried side by side, and proposed at a time.
      method: ``tpe`` (Optuna's tree-structured Parzen estimator), ``random``, or ``halving``:
        random configs with one seed, of which the better half goes on with twice as many new
        seeds, until two are left.
    """

    budget: int = 64
    seeds: int = 3
    width: int = 8
    method: str = "tpe"


_DEFAULT = Search()


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
        initial one, unless another is better.
      trials: all that were tried, in order.
      finalists: the best of the trials, best first, and what they scored with fresh seeds; the
        last one is the initial config.
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
    search: Search = _DEFAULT,
    data: Dataset | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Tuned:
    """Search for the best numbers.

    Args:
      config: the initial one; it is compared with the best at the end.
      axes: what is varied.
      objective: by what a config is judged, as the mean over seeds.
      key: of the search's seeds, the fresh ones and the proposals.
      search: budget and method.
      data: as in ``sweep``.
      store: a folder that keeps proposals and finished runs. The same search resumes there, and
        several processes that are given the same folder share it (but not under ``halving``): each
        runs other generations, and all return the same.
      progress: show a progress bar for each batch.

    Returns:
      What was found; the fresh seeds are ``width * seeds / 4`` at least.

    Raises:
      ConfigError: before any run, if something cannot run, or the objective is not defined for the
        config.

    Warns:
      BrokenContract: once, at the end, if a custom part broke its contract with the fresh seeds.
    """
    _check(axes, search)
    check_defined(objective, config, data)
    search_key, fresh_key = jax.random.split(key)
    folder = None if store is None else pathlib.Path(store)
    run = _Runs(config, objective, data, folder, progress)
    study = _study(run, axes, key, search)
    try_some = _halving if search.method == "halving" else _generations
    trials = try_some(search, study, run, search_key)
    most = max(trial.scores.size for trial in trials)
    whole = [trial for trial in trials if trial.scores.size == most]
    best = sorted(whole, key=run.order)[:FINALISTS]
    initial = {axis.path: float(np.float32(_value(config, axis.path))) for axis in axes}
    points = [*(trial.values for trial in best), initial]
    fresh = max(2, search.width * search.seeds // (FINALISTS + 1))
    with study.waited_for("finalists"):
        again = run(points, jax.random.split(fresh_key, fresh), "finalists", last=True)
    # Of equals the last, which is the initial config.
    chosen = min(reversed(range(len(points))), key=lambda i: run.order(again[i]))
    unknown = np.full(1, np.nan)
    return Tuned(
        best=config if chosen == len(best) else config.override(points[chosen]),
        trials=trials,
        finalists=list(zip([*best, Trial(initial, unknown, unknown)], again, strict=True)),
        chosen=chosen,
    )


def _check(axes: Sequence[Axis], search: Search) -> None:
    if not axes:
        raise ConfigError("--vary is missing: name at least one number to tune.")
    paths = [axis.path for axis in axes]
    if len(set(paths)) < len(paths):
        raise ConfigError(f"--vary: {max(paths, key=paths.count)} is varied twice.")
    for name, least in (("budget", FINALISTS), ("seeds", 1), ("width", 1)):
        if (value := getattr(search, name)) < least:
            raise ConfigError(f"--{name} {value}: must be >= {least}.")
    if search.method not in METHODS:
        raise ConfigError(f"--method {search.method}: must be one of {', '.join(METHODS)}.")
    try:
        with warnings.catch_warnings():
            # Of its progress bar, which is not shown: a notebook may have no widgets.
            warnings.simplefilter("ignore")
            import optuna  # noqa: F401
    except ImportError:
        raise ConfigError("tune: needs Optuna, pip install 'pause_jax[tune]'.") from None


def _value(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


class _Runs(NamedTuple):
    """Runs configs, and scores and orders them."""

    config: SimConfig
    objective: Objective
    data: Dataset | None
    store: pathlib.Path | None
    progress: bool

    def order(self, trial: Trial) -> float:
        """The order of trials, the best the lowest."""
        return badness(trial, self.objective.sign)

    def __call__(
        self, points: Sequence[dict[str, float]], keys: Array, name: str, *, last: bool = False
    ) -> list[Trial]:
        """A trial for each point, with a score for each key; ``name`` of their folder."""
        with warnings.catch_warnings():
            if not last:
                warnings.simplefilter("ignore", contract.BrokenContract)
            result = sweep(
                [self.config.override(values) for values in points],
                keys,
                data=self.data,
                record=(*self.objective.record, *contract.RECORDED),
                store=None if self.store is None else self.store / name,
                progress=self.progress,
            )
        scores = self.objective.value(result).where(result.first_broken_round <= 0)
        how_near = self.objective.near
        near = xr.zeros_like(scores) if how_near is None else how_near(result)
        each = zip(points, *(x.values.astype(np.float64) for x in (scores, near)), strict=True)
        return [Trial(*trial) for trial in each]


def _study(run: _Runs, axes: Sequence[Axis], key: Array, search: Search) -> Study:
    """The proposals of a search: shared and kept, but for those of halving, which are one batch."""
    return Study(
        axes,
        width=search.width,
        startup=max(search.width, search.budget // 4) if search.method == "tpe" else None,
        key=key,
        folder=None if search.method == "halving" else run.store,
        made_by={
            "config": config_file.dumps(run.config),
            "axes": axes,
            "objective": run.objective.text,
            "key": jax.random.key_data(key).tolist(),
            **search._asdict(),
        },
    )


def _generations(search: Search, study: Study, run: _Runs, key: Array) -> list[Trial]:
    """Generations of ``width`` configs; the last one is filled up, so that it compiles nothing.

    Each is run by one process; this one runs what no other does until all have ended.
    """
    keys = jax.random.split(key, search.seeds)
    numbers = range(-(-search.budget // search.width))
    while left := [each for each in numbers if study.scores(each) is None]:
        mine = next((each for each in left if study.claim(f"{each:03}")), None)
        if mine is None:
            time.sleep(LOOK_EVERY)
            continue
        try:
            if study.scores(mine) is None:  # no other process was sooner
                proposals = study.ask(mine)
                found = run([each.values for each in proposals], keys, f"{mine:03}")
                known = [(trial.scores.tolist(), trial.near.tolist()) for trial in found]
                study.tell(mine, [run.order(trial) for trial in found], known)
        finally:
            study.release(f"{mine:03}")
    trials = [
        Trial(proposal.values, *map(np.asarray, known))
        for number in numbers
        for proposal, known in zip(study.ask(number), study.scores(number), strict=True)
    ]
    return trials[: search.budget]


def _halving(search: Search, study: Study, run: _Runs, key: Array) -> list[Trial]:
    """Rungs of equally many runs: half the configs, twice as many new seeds each time.

    Optuna's pruners judge one trial at a time; a batch of one shape needs exactly half of a rung.
    """
    runs = search.budget * search.seeds
    rungs = max(1, int(math.log2(max(runs, 2))) - 2)
    per_rung = max(2, 2 ** int(math.log2(max(runs / rungs, 2))))
    trials, done = list[Trial](), 0
    proposed = study.ask(0, per_rung)
    rung = [Trial(each.values, np.zeros(0), np.zeros(0)) for each in proposed]
    for number in itertools.count():
        seeds = per_rung // len(rung)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(np.arange(done, done + seeds))
        new = run([trial.values for trial in rung], keys, f"{number:03}")
        rung = [
            Trial(a.values, np.append(a.scores, b.scores), np.append(a.near, b.near))
            for a, b in zip(rung, new, strict=True)
        ]
        if len(rung) <= FINALISTS + 1:
            break
        rung = sorted(rung, key=run.order)
        half = len(rung) // 2
        trials += rung[half:]
        rung, done = rung[:half], done + seeds
    return [*trials, *rung]
