"""Search for config values that minimise or maximise an objective.

Optuna (the ``tune`` extra) proposes and stores trials. Each generation of trials runs as one
``sweep``. All generations use the same seeds. The best trials are rerun with fresh seeds, because
the best of many noisy scores is optimistically biased.
"""

from __future__ import annotations

import functools
import importlib.util
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
from pause_jax.sweeps import provenance
from pause_jax.sweeps.execute import sweep
from pause_jax.sweeps.plan import MOST
from pause_jax.sweeps.store import LOG

try:
    with warnings.catch_warnings():
        # In notebooks without widgets, Optuna warns about its progress bar, which we do not use.
        warnings.simplefilter("ignore")
        import optuna
        from optuna import distributions
        from optuna.distributions import BaseDistribution
        from optuna.storages.journal import JournalFileBackend
        from optuna.trial import TrialState
except ImportError:
    raise ConfigError("tune requires Optuna. Run pip install 'pause_jax[tune]'.") from None

# Samplers that need no arguments, and the package that each sampler requires.
SAMPLERS = {
    "TPESampler": "optuna", "RandomSampler": "optuna", "QMCSampler": "optuna", "GPSampler": "torch",
    "NSGAIISampler": "optuna", "NSGAIIISampler": "optuna", "CmaEsSampler": "cmaes",
}  # fmt: skip
# Number of top trials to rerun with fresh seeds, in addition to the initial config.
FINALISTS = 3
# Penalty for incomplete trials, larger than the mean score of any complete trial.
_INCOMPLETE = 1e300

Values = Mapping[str, Any]
Floats = NDArray[np.float64]


class Objective(NamedTuple):
    """Score of a run.

    Attributes:
      text: name, as spelled on the command line.
      sign: 1 to minimise, -1 to maximise.
      record: quantities to record. Without ``record[-1]``, the objective is undefined.
      value: function that maps a sweep's result to scores [config, seed] (not finite if undefined).
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
      best: config with the lowest ``badness`` over the fresh seeds. The initial config wins ties.
      trials: one row per trial, with a column per axis and the columns of :func:`summarise`.
      finalists: table of the runs with fresh seeds, in the format of ``trials``. The best trials
        come first, by search rank, and the initial config comes last. ``searched`` is the mean
        score over the search seeds. ``change`` and ``change_error`` are the mean and standard
        error of the difference from the initial config, or NaN if a seed has no score.
      chosen: row number of ``best`` in ``finalists``.
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
      axes: Optuna distribution of each field, keyed by dotted path (see :func:`axis_of`).
      objective: score to minimise or maximise (see :func:`objective_of`).
      key: PRNG key from which the search seeds, fresh seeds and proposals are derived.
      budget: number of trials, rounded up to a multiple of ``width``.
      seeds: number of seeds per trial. Finalists use ``max(2, width * seeds // 4)`` fresh seeds.
      width: number of trials per generation.
      sampler: name in ``SAMPLERS`` (default: a multivariate ``TPESampler``).
      storage: file or database URL of Optuna's storage (default: in memory). A search with the same
        config, data, axes, objective, seeds and key resumes from the storage. A finished search
        is not rerun. If processes share a search, they run different generations.
      data: data set, as in ``sweep``.
      progress: whether to show a progress bar for each generation.

    Raises:
      ConfigError: if an argument is invalid, or the objective is undefined for the config.

    Warns:
      BrokenContract: if a custom component breaks its contract in a run with fresh seeds.
    """
    counts = {"axes": len(axes), "budget": budget, "seeds": seeds, "width": width}
    for name, number in counts.items():
        if not 1 <= number <= MOST:
            raise ConfigError(f"{name} = {number}: must be >= 1 and <= {MOST}.")
    entropy = jax.random.key_data(key).ravel().tolist()
    proposer = _sampler(sampler, entropy, startup=max(width, budget // 4))
    _check_defined(objective, config, data)
    search_key, fresh_key = jax.random.split(key)
    for path, number in programs(axes, config).items():
        LOG.info("%s requires one program per value (%d programs).", path, number)
    described = config_file.dumps(config), provenance.data_digest(data)
    search = *described, sorted(axes.items()), objective.text, seeds, entropy
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=storage and _storage(storage),
        sampler=proposer,
        study_name=provenance.fingerprint({"search": repr(search)}),
        load_if_exists=True,
    )
    run = functools.partial(_run, config, objective, data, progress)
    while len(trials := _finished(study)) < budget:
        asked = [study.ask(dict(axes)) for _ in range(width)]
        try:
            scores, near = run([each.params for each in asked], jax.random.split(search_key, seeds))
        except BaseException:
            for each in asked:
                # The next process that asks for trials will receive these trials and their values.
                each.storage.set_trial_state_values(each._trial_id, TrialState.WAITING)
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
    # Reverse the order, because the initial config comes last and must win ties.
    chosen = int(finalists.badness[::-1].idxmin())
    return Tuned(_config_at(config, points[chosen]), trials, finalists, chosen)


def summarise(scores: Floats, near: Floats, sign: int) -> pd.DataFrame:
    """Summarise scores in a table with one row per trial.

    Args:
      scores: [trials, seeds], NaN if a run has no score.
      near: [trials, seeds], best test accuracy of each run (0 if unrecorded).
      sign: 1 to minimise, -1 to maximise.

    Returns:
      Table with the columns ``seeds``, ``scored`` (number of seeds with a score), ``mean``,
      ``error`` (standard error of the mean) and ``badness``, which is lowest for the best trial.
      Trials with a score for every seed come first, ranked by mean. The others are ranked by number
      of missing scores, then by mean (or by mean ``near`` for trials without any score).
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
    """Parse ``PATH=LOW..HIGH``, ``PATH=log:LOW..HIGH`` or ``PATH=A,B`` into (path, distribution).

    Raises:
      ConfigError: if the syntax is invalid, the field is unknown, a range is set for a field that
        is not a number, or a value violates the field's rule.
    """
    path, _, values = text.partition("=")
    field = field_at(config, path)
    choices: list[Any] = [word.strip() for word in values.split(",")]
    if len(choices) > 1:
        axis: BaseDistribution = distributions.CategoricalDistribution(choices)
    elif is_node(field) or (is_static(field) and field.metadata["rule"].kind is not int):
        raise ConfigError(
            f"--vary {text}: {path} does not support ranges. List its values: {path}=A,B."
        )
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
    """Parse the objective ``seconds to N %``, ``accuracy``, ``loss``, ``regret`` or ``seconds``.

    Raises:
      ConfigError: if ``text`` is not one of these objectives, or N is not in (0, 100].
    """
    words = " ".join(text.split()).lower()
    known = {each.text: each for each in _OBJECTIVES}
    if match := re.fullmatch(r"seconds to ([0-9]+(?:\.[0-9]+)?) ?%", words):
        target = float(match[1]) / 100
        value = functools.partial(metrics.time_to_accuracy, target=target)
        known[words] = Objective(words, 1, ("eval_clock", "test_accuracy"), value)
    if words not in known or (match and not 0 < target <= 1):
        raise ConfigError(
            f"--objective {text!r}: must be 'seconds to N %' with N > 0 and <= 100, or one of "
            f"{', '.join(known)}."
        )
    return known[words]


def _check_defined(objective: Objective, config: SimConfig, data: Dataset | None) -> None:
    """Raise ConfigError if the objective is undefined for the config."""
    config, loaded = prepare(config, data)
    has = {"clock"} | ({"regret"} if config.track_regret and not config.overlaps else set())
    if config.learning is not None:
        has |= set(learner_of(config, loaded).metrics)
    if objective.record[-1] not in has:
        defined = [each.text for each in _OBJECTIVES if each.record[-1] in has]
        raise ConfigError(
            f"--objective {objective.text!r}: requires {objective.record[-1]}, which runs of this "
            f"config do not record. Use {' or '.join(defined)}."
        )


def programs(axes: Mapping[str, BaseDistribution], config: SimConfig) -> dict[str, int]:
    """Return the number of values for each axis that needs one program per value, keyed by path."""
    number = {}
    axis: Any
    for path, axis in axes.items():
        # A single program supports runs of any length.
        if is_static(field_at(config, path)) and path not in ("num_rounds", "eval_every"):
            values = getattr(axis, "choices", None) or range(axis.low, axis.high + 1, axis.step)
            number[path] = len(values)
    return number


def _storage(text: str) -> Any:
    """Open the Optuna storage at a URL or journal path."""
    try:
        if "://" in text:
            return optuna.storages.RDBStorage(text)
        return optuna.storages.JournalStorage(JournalFileBackend(text))
    except Exception as error:  # Optuna and SQLAlchemy raise many types of errors
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"--storage {text}: cannot be opened ({why}). Pass a different file or URL."
        ) from None


def _sampler(name: str | None, entropy: list[int], startup: int) -> optuna.samplers.BaseSampler:
    """Return a sampler that is reseeded for each trial, using the trial number.

    Trial numbers are unique within an Optuna study. Processes that share a study therefore make
    different proposals, and a resumed search makes the same proposals as an uninterrupted search.
    """
    if name is not None and name not in SAMPLERS:
        raise ConfigError(f"--sampler {name}: must be one of {', '.join(SAMPLERS)}.")
    if importlib.util.find_spec(package := SAMPLERS[name or "TPESampler"]) is None:
        raise ConfigError(f"--sampler {name}: requires {package}. Run pip install {package}.")
    kind: Any = getattr(optuna.samplers, name or "TPESampler")
    options = {} if name else {"n_startup_trials": startup, "multivariate": True}

    class Seeded(kind):  # type: ignore[misc]
        def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            seed = np.random.default_rng([*entropy, trial.number]).integers(2**31)
            super().__init__(seed=int(seed), **options)
            super().before_trial(study, trial)

    return Seeded(**options)


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
    """Return scores and best test accuracies (0 if unrecorded) of a sweep, each [points, keys]."""
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
    """Apply ``values`` to a copy of the config. Strings are parsed as on the command line."""
    parsed = {
        path: config_file.parse_value(config, path, value) if isinstance(value, str) else value
        for path, value in values.items()
    }
    return config.override(parsed)
