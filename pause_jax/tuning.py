"""Search for the values of a config that optimize an objective.

Optuna (the extra ``tune``) proposes and stores trials. A generation of trials is one ``sweep`` over
the same seeds, which compares all trials in the same worlds and reuses compiled programs. Only the
values of a static number, such as ``num_selected``, compile one program each. The best trials run
again with fresh seeds, because the best of many noisy scores is too good to be true.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import xarray as xr
from jax import Array
from numpy.typing import NDArray

from pause_jax.analysis import metrics
from pause_jax.base.struct import ConfigError, field_at, is_node, is_static
from pause_jax.config import SimConfig, config_file, validate
from pause_jax.learning import Dataset
from pause_jax.run import contract
from pause_jax.run.preflight import prepare
from pause_jax.run.setup import learner_of
from pause_jax.sweeps.store import LOG
from pause_jax.sweeps.sweep import sweep

try:
    with warnings.catch_warnings():
        # In notebooks without widgets, Optuna warns about its progress bar, which is off.
        warnings.simplefilter("ignore")
        import optuna
        from optuna import distributions
        from optuna.distributions import BaseDistribution
        from optuna.storages.journal import JournalFileBackend
        from optuna.trial import TrialState
except ImportError:
    raise ConfigError("tune: needs Optuna, pip install 'pause_jax[tune]'.") from None

# Number of best trials that run again with fresh seeds, next to the initial config.
FINALISTS = 3
# Maximum number of axes, trials, seeds, and trials per generation.
_MOST = 10_000
# Exceeds the mean score of any trial with a score in every seed.
_INCOMPLETE = 1e300

Values = Mapping[str, Any]
Floats = NDArray[np.float64]


class Objective(NamedTuple):
    """Score of a run.

    Attributes:
      text: name that the user typed.
      sign: 1 to minimise, -1 to maximise.
      record: recorded quantities that it needs; without the last one it is undefined.
      value: maps a sweep's result to scores [config, seed], not finite for a run without a score.
    """

    text: str
    sign: int
    record: tuple[str, ...]
    value: Callable[[xr.Dataset], xr.DataArray]


_OBJECTIVES = (
    Objective("accuracy", -1, ("eval_clock", "test_accuracy"), metrics.final_accuracy),
    Objective("loss", 1, ("eval_clock", "test_loss"), metrics.final_loss),
    Objective("regret", 1, ("regret",), metrics.total_regret),
    Objective("seconds", 1, ("clock",), metrics.simulated_seconds),
)


class Tuned(NamedTuple):
    """Result of a search.

    Attributes:
      best: best config with the fresh seeds; the initial config, unless another is better.
      trials: one row per trial, with its values by path and the columns of :func:`summarise`.
      finalists: the same table with fresh seeds, for the best trials in the order of the search,
        and finally for the initial config. ``searched`` is the mean in the search. ``change`` and
        ``change_error`` compare with the initial config over the same seeds.
      chosen: row of ``best`` in ``finalists``.
    """

    best: SimConfig
    trials: pd.DataFrame
    finalists: pd.DataFrame
    chosen: int


def tune(
    config: SimConfig,
    axes: Mapping[str, BaseDistribution],
    objective: Objective,
    key: Array,
    *,
    budget: int = 64,
    seeds: int = 3,
    width: int = 8,
    sampler: str | None = None,
    storage: str | None = None,
    data: Dataset | None = None,
    progress: bool = True,
) -> Tuned:
    """Search for the config with the best mean score.

    Args:
      config: initial config, which competes with the best trials in the final comparison.
      axes: Optuna distribution of each field, by dotted path (:func:`axis_of`).
      objective: score to optimize (:func:`objective_of`).
      key: PRNG key for the seeds of the search, the fresh seeds and the proposals.
      budget: number of trials, rounded up to whole generations.
      seeds: runs per trial. Each finalist gets ``width * seeds / 4`` fresh seeds, at least 2.
      width: trials per generation.
      sampler: class in ``optuna.samplers`` (default: a multivariate ``TPESampler``).
      storage: Optuna's storage, a file or the URL of a database. The same search resumes there, and
        a finished search runs nothing. Processes with the same storage run different generations.
      data: data set, as in ``sweep``.
      progress: whether to show a progress bar for each generation.

    Raises:
      ConfigError: if an argument is invalid or the config lacks the objective, before any run.

    Warns:
      BrokenContract: if a custom component breaks its contract with the fresh seeds.
    """
    counts = {"axes": len(axes), "budget": budget, "seeds": seeds, "width": width}
    for name, number in counts.items():
        if not 1 <= number <= _MOST:
            raise ConfigError(f"{name} = {number}: must be >= 1 and <= {_MOST}.")
    _check_defined(objective, config, data)
    search_key, fresh_key = jax.random.split(key)
    entropy = jax.random.key_data(key).ravel().tolist()
    for path, number in programs(axes, config).items():
        LOG.info("%s compiles one program per value: %d programs.", path, number)
    search = config_file.dumps(config), sorted(axes.items()), objective.text, seeds, entropy
    study = _study(storage, repr(search))
    run = functools.partial(_run, config, objective, data, progress)
    while len(trials := _finished(study)) < budget:
        startup = max(width, budget // 4)
        asked = [_ask(study, axes, sampler, entropy, startup) for _ in range(width)]
        try:
            scores, near = run([each.params for each in asked], jax.random.split(search_key, seeds))
        except BaseException:
            for each in asked:
                study.tell(each, state=TrialState.FAIL)
            raise
        rows = summarise(scores, near, objective.sign).to_dict("records")
        for each, row in zip(asked, rows, strict=True):
            each.set_user_attr("row", row)
            study.tell(each, row["badness"])
    best = trials.nsmallest(FINALISTS, "badness")
    points = [*best[list(axes)].to_dict("records"), {}]
    fresh_keys = jax.random.split(fresh_key, max(2, width * seeds // (FINALISTS + 1)))
    kept = f"finalists of {len(trials)} trials with {len(fresh_keys)} seeds"
    if kept in study.user_attrs:
        LOG.info("Nothing left to run.")
    else:
        scores, near = run(points, fresh_keys, warn=True)
        initial = {path: _field(config, path) for path in axes}
        table = pd.DataFrame([*points[:-1], initial]).join(summarise(scores, near, objective.sign))
        table["searched"] = [*best["mean"], math.nan]
        change = pd.DataFrame(scores - scores[-1]).agg(["mean", "sem"], axis=1, skipna=False)
        table[["change", "change_error"]] = change
        study.set_user_attr(kept, table.to_dict("records"))
    finalists = pd.DataFrame(study.user_attrs[kept])
    # Reversed, because the initial config comes last and wins a tie.
    chosen = int(finalists.badness[::-1].idxmin())
    return Tuned(_config_at(config, points[chosen]), trials, finalists, chosen)


def summarise(scores: Floats, near: Floats, sign: int) -> pd.DataFrame:
    """Summarise the scores of trials, one row per trial.

    Args:
      scores: [trials, seeds]; NaN for a run without a score.
      near: [trials, seeds], progress of each run towards a score; larger is better.
      sign: 1 to minimise, -1 to maximise.

    Returns:
      Columns ``seeds``, ``scored`` (seeds with a score), ``mean`` and standard ``error`` of the
      scores, and ``badness``, which is lowest for the best trial. Trials with a score in every seed
      rank by their mean. All others rank below, first by the number of seeds without a score, then
      by the mean of the remaining scores or, without any score, by ``near``.
    """
    rows = pd.DataFrame(scores)
    table = pd.DataFrame({"seeds": scores.shape[1], "scored": rows.count(axis=1)})
    table["mean"] = rows.mean(axis=1)
    table["error"] = rows.sem(axis=1)
    missing = table.seeds - table.scored
    rest = (sign * table["mean"]).fillna(pd.Series(-near.mean(axis=1)))
    worse = _INCOMPLETE * (1 + 2 * missing + rest / (1 + rest.abs()))
    return table.assign(badness=rest.where(missing == 0, worse))


def axis_of(text: str, config: SimConfig) -> tuple[str, BaseDistribution]:
    """Parse ``PATH=LOW..HIGH``, ``PATH=log:LOW..HIGH`` or ``PATH=A,B`` into path and distribution.

    Raises:
      ConfigError: if the syntax is invalid, the field is unknown, a field with a range is not a
        number, or values violate the field's rule.
    """
    path, _, values = text.partition("=")
    field = field_at(config, path)
    choices: list[Any] = [word.strip() for word in values.split(",")]
    if len(choices) > 1:
        axis: BaseDistribution = distributions.CategoricalDistribution(choices)
    elif is_node(field) or (is_static(field) and field.metadata["rule"].kind is not int):
        raise ConfigError(f"--vary {text}: {path} has no range. List its values, {path}=A,B.")
    else:
        whole = is_static(field)
        kind: Any = distributions.IntDistribution if whole else distributions.FloatDistribution
        try:
            choices = [*map(int if whole else float, values.removeprefix("log:").split(".."))]
            axis = kind(*choices, log=values.startswith("log:"))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"--vary {text}: must be PATH=LOW..HIGH, PATH=log:LOW..HIGH or PATH=A,B ({error})."
            ) from None
    for value in choices:
        validate(_config_at(config, {path: value}))
    return path, axis


def objective_of(text: str) -> Objective:
    """Return the objective ``seconds to N %``, ``accuracy``, ``loss``, ``regret`` or ``seconds``.

    Raises:
      ConfigError: if the name is none of these.
    """
    words = " ".join(text.split()).lower()
    known = {each.text: each for each in _OBJECTIVES}
    if match := re.fullmatch(r"seconds to ([0-9]+(?:\.[0-9]+)?) ?%", words):
        target = float(match[1]) / 100
        value = functools.partial(metrics.time_to_accuracy, target=target)
        known[words] = Objective(words, 1, ("eval_clock", "test_accuracy"), value)
    if words not in known or (match and not 0 < target <= 1):
        raise ConfigError(
            f"--objective {text!r}: must be 'seconds to 80 %' or another target above 0 % and at "
            f"most 100 %, or one of {', '.join(known)}."
        )
    return known[words]


def _check_defined(objective: Objective, config: SimConfig, data: Dataset | None) -> None:
    """Raise ConfigError if no run of the config can have the objective."""
    config, loaded = prepare(config, data)
    has = {"clock"} | ({"regret"} if config.track_regret and not config.overlaps else set())
    if config.learning is not None:
        has |= set(learner_of(config, loaded).metrics)
    if objective.record[-1] not in has:
        defined = [each.text for each in _OBJECTIVES if each.record[-1] in has]
        raise ConfigError(
            f"--objective {objective.text!r}: needs {objective.record[-1]}, which a run of this "
            f"config does not have. Take {' or '.join(defined)}."
        )


def programs(axes: Mapping[str, BaseDistribution], config: SimConfig) -> dict[str, int]:
    """Return the number of values of each axis that compiles one program per value."""
    number: dict[str, int] = {}
    axis: Any
    for path, axis in axes.items():
        # One program serves runs of any length.
        if is_static(field_at(config, path)) and path not in ("num_rounds", "eval_every"):
            values = getattr(axis, "choices", None) or range(axis.low, axis.high + 1, axis.step)
            number[path] = len(values)
    return number


def _study(storage: str | None, search: str) -> optuna.Study:
    """Open the study of a search in the storage, or create it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    opened: Any = storage
    if storage is not None and "://" not in storage:
        opened = optuna.storages.JournalStorage(JournalFileBackend(storage))
    name = hashlib.sha256(search.encode()).hexdigest()[:16]
    return optuna.create_study(storage=opened, study_name=name, load_if_exists=True)


def _ask(
    study: optuna.Study,
    axes: Mapping[str, BaseDistribution],
    name: str | None,
    entropy: list[int],
    startup: int,
) -> optuna.Trial:
    """Ask for a trial, seeded by its place, the first number that no other trial has.

    Failed trials have no place, so a resumed search makes the same proposals. However, trials that
    a killed process left running keep their places. Processes that collide at a place ask again.
    """
    taken = _places(study)
    place = next(each for each in itertools.count() if each not in taken)
    study.sampler = _sampler(name, [*entropy, place], startup)
    trial = study.ask(dict(axes))
    trial.set_user_attr("place", place)
    if _places(study).count(place) == 1:
        return trial
    study.tell(trial, state=TrialState.FAIL)
    return _ask(study, axes, name, entropy, startup)


def _places(study: optuna.Study) -> list[int]:
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING))
    return [each.user_attrs["place"] for each in trials if "place" in each.user_attrs]


def _sampler(name: str | None, entropy: list[int], startup: int) -> optuna.samplers.BaseSampler:
    seed = int(np.random.default_rng(entropy).integers(2**31))
    if name is None:
        return optuna.samplers.TPESampler(n_startup_trials=startup, multivariate=True, seed=seed)
    if name not in optuna.samplers.__all__:
        raise ConfigError(f"--sampler {name}: must be a class of optuna.samplers, RandomSampler.")
    return getattr(optuna.samplers, name)(seed=seed)


def _finished(study: optuna.Study) -> pd.DataFrame:
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return pd.DataFrame([each.params | each.user_attrs["row"] for each in complete])


def _run(
    config: SimConfig,
    objective: Objective,
    data: Dataset | None,
    progress: bool,
    points: Sequence[Values],
    keys: Array,
    *,
    warn: bool = False,
) -> tuple[Floats, Floats]:
    """Run all points in one sweep; return ``scores`` and ``near`` as [points, keys]."""
    configs = [_config_at(config, values) for values in points]
    record = (*objective.record, *contract.RECORDED)
    with warnings.catch_warnings():
        if not warn:
            warnings.simplefilter("ignore", contract.BrokenContract)
        result = sweep(configs, keys, data=data, record=record, progress=progress)
    scores = objective.value(result)
    scores = scores.where((result.first_broken_round <= 0) & np.isfinite(scores))
    near = xr.zeros_like(scores)
    if "test_accuracy" in result:
        near = result.test_accuracy.max("eval_round").fillna(0.0)
    return scores.values.astype(np.float64), near.values.astype(np.float64)


def _field(config: SimConfig, path: str) -> Any:
    """Return the value of a field, or the name of a nested config."""
    value: Any = functools.reduce(getattr, path.split("."), config)
    return getattr(value, "name", value)


def _config_at(config: SimConfig, values: Values) -> SimConfig:
    """Return the config with these values; parse strings as on the command line."""
    parsed = {
        path: config_file.parse_value(config, path, value) if isinstance(value, str) else value
        for path, value in values.items()
    }
    return config.override(parsed)
