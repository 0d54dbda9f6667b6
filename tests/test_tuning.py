"""Tests of the search for good numbers: its proposals, its order, and whether the best holds."""

import csv
import importlib.util
import itertools
import logging
import pathlib
import re
import subprocess
import sys
import time

import jax
import numpy as np
import optuna
import pandas as pd
import pytest
import xarray as xr

from pause_jax import (
    ConfigError,
    SimConfig,
    config_file,
    presets,
    simulate,
    sweep,
    tuning,
)
from pause_jax.learning import Dataset, FedAvgM, Learning, Linear, LinearRegression
from pause_jax.policies import named
from pause_jax.privacy import NoPrivacy
from pause_jax.run import contract
from pause_jax.sweeps.execute import SweepInterrupted
from tests.support.command import run
from tests.support.compilations import Compilations

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
KEY = jax.random.key(0)
BASE = SimConfig(
    num_clients=6, num_selected=3, num_rounds=12, eval_every=12, track_regret=False,
    policy=named("random"), privacy=NoPrivacy(),
    learning=Learning(
        data=LinearRegression(num_samples=120), model=Linear(), optimizer="sgd", max_steps=2,
        batch_size=10, server=FedAvgM(rate=1.0, momentum=0.5),
    ),
)  # fmt: skip
VARY = ("learning.learning_rate=log:0.001..1", "learning.server.momentum=0..0.95")
LOSS = tuning.objective_of("loss")
NAN, INF = np.nan, np.inf
SAMPLERS = [None, "RandomSampler"]


def axes_of(vary=VARY, config=BASE):
    return dict(tuning.axis_of(text, config) for text in vary)


def tune(*arguments, **options):
    return tuning.tune(*arguments, progress=False, **options)


def test_unreached_target_has_no_seconds():
    aim = tuning.objective_of("seconds to 80 %")
    accuracy = np.asarray(
        [[0.1, 0.85, 0.9], [0.1, 0.5, 0.8], [0.1, 0.5, 0.79], [0.1, 0.2, 0.3], [NAN] * 3]
    )
    dims = ("config", "seed", "eval_round")
    seconds = np.broadcast_to([10.0, 20.0, 30.0], accuracy.shape)
    result = xr.Dataset(
        {"test_accuracy": (dims, accuracy[None]), "eval_clock": (dims, seconds[None])}
    )
    np.testing.assert_array_equal(aim.value(result).values[0], [20, 30, NAN, NAN, NAN])
    assert aim.sign == 1
    assert tuning.objective_of("accuracy").sign == -1


# Scores and nearness of trials of two seeds, best first if small is good.
ORDER = [
    ((-5.0, -5.0), 0),
    ((1.0, 2.0), 0),
    ((1e6, 1e6), 0),
    ((1e6, 1e6 + 1e-3), 0),
    ((3.0, NAN), 0),
    ((NAN, 4.0), 0),
    ((NAN, 4e9), 0),
    ((NAN, NAN), 0.7),
    ((NAN, NAN), 0.3),
]


def test_trials_without_a_score_rank_last():
    scores = np.asarray([scores for scores, _ in ORDER])
    near = np.asarray([[near] * 2 for _, near in ORDER])
    small = tuning.summarise(scores, near, 1)
    assert np.isfinite(small.badness).all()
    assert (np.diff(small.badness) > 0).all()
    # If large is good, means turn round; what is incomplete stays behind what is complete.
    large = tuning.summarise(scores, near, -1)
    assert np.argsort(large.badness).tolist() == [3, 2, 1, 0, 6, 5, 4, 7, 8]
    assert small["mean"].tolist()[4:6] == [3.0, 4.0]
    assert small.error[1] == pytest.approx(0.5)
    assert small.loc[7, ["mean", "error"]].isna().all()
    assert small.scored.tolist() == [2, 2, 2, 2, 1, 1, 1, 0, 0]


class Played:
    """A ``sweep`` with invented scores, which remembers the keys of each call.

    Attributes:
      score: (learning rate, whether the seeds are fresh, number of the seed) -> score.
      near: learning rate -> how near its runs came, in the second of three evaluations.
      keys: of each call, as tuples of words.
    """

    def __init__(self, score, near=lambda rate: 0.0):
        self.score, self.near, self.keys = score, near, []

    def __call__(self, configs, keys, **arguments):
        self.keys.append([tuple(words) for words in jax.random.key_data(keys).tolist()])
        assert set(contract.RECORDED) <= set(arguments["record"])
        rates = [float(config.learning.learning_rate) for config in configs]
        # The search and its finalists are told apart by their seeds.
        fresh = not set(self.keys[-1]) & set(self.keys[0])
        scores = [[self.score(rate, fresh, i) for i in range(len(keys))] for rate in rates]
        near = [[[-self.near(rate), self.near(rate), NAN]] * len(keys) for rate in rates]
        return xr.Dataset(
            {
                "score": (("config", "seed"), np.asarray(scores)),
                "test_accuracy": (("config", "seed", "eval_round"), np.asarray(near)),
                "first_broken_round": (("config", "seed"), np.zeros((len(rates), len(keys)), int)),
            }
        )


def searched(monkeypatch, played, sampler="RandomSampler", sign=-1, key=KEY, **arguments):
    """The result of a search over learning rates of 1e-2 to 1e6, without any run."""
    monkeypatch.setattr(tuning, "sweep", played)
    monkeypatch.setattr(tuning, "_check_defined", lambda *_: None)
    aim = tuning.Objective("score", sign, (), lambda data: data.score)
    axes = axes_of(["learning.learning_rate=log:1e-2..1e6"])
    options = {"budget": 24, "seeds": 4, "width": 8} | arguments
    return tune(BASE, axes, aim, key, sampler=sampler, **options)


def rate_of(found):
    return float(found.best.learning.learning_rate)


def rates(found):
    return found.trials["learning.learning_rate"].to_numpy()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_key_fixes_the_proposals(sampler, monkeypatch):
    one, same, other = (
        searched(monkeypatch, Played(lambda rate, *_: rate), sampler, key=jax.random.key(seed))
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(rates(one), rates(same))
    assert one.best == same.best
    assert len(set(rates(one)) | set(rates(other))) == 48


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("bad", [NAN, -INF, INF])
def test_a_search_among_configs_that_diverge_chooses_a_finite_one(sampler, bad, monkeypatch):
    def score(rate, fresh, seed):
        return bad if rate > 100 or (rate > 1 and seed == 1) else rate

    found = searched(monkeypatch, Played(score), sampler, budget=64)
    assert 0.1 < rate_of(found) <= 1
    complete = rates(found)[found.trials.scored == 4]
    assert found.finalists["learning.learning_rate"][0] == max(complete)
    assert len(complete) < len(found.trials)
    if sampler is None:
        # Optuna learns the same order: three quarters of the range are above 1.
        assert np.mean(rates(found)[32:] <= 1) > 0.4


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_search_without_scores_finds_nearest_config(sampler, monkeypatch):
    def near(rate):
        return NAN if rate > 1e5 else 0.9 - 0.1 * abs(np.log10(rate) - 4)

    played = Played(lambda *_: NAN, near)
    found = searched(monkeypatch, played, sampler, sign=1)
    assert abs(np.log10(rate_of(found)) - 4) < 1
    assert not found.trials.scored.any()
    assert rates(found).max() > 1e5
    assert len(played.keys) == 24 / 8 + 1, "a trial that came nowhere near counts"


def test_trials_of_a_killed_process_do_not_count_in_the_budget(monkeypatch, tmp_path):
    options = {"sampler": None, "storage": str(tmp_path / "kept.log")}
    played = Played(lambda rate, *_: rate)
    assert len(searched(monkeypatch, played, budget=10, **options).trials) == 16
    backend = optuna.storages.journal.JournalFileBackend(options["storage"])
    study = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))
    for _ in range(8):
        study.ask(axes_of(["learning.learning_rate=log:1e-2..1e6"]))
    assert len(searched(monkeypatch, played, **options).trials) == 24


def test_a_search_resumes_with_its_own_data_only(monkeypatch, tmp_path):
    played = Played(lambda rate, *_: rate)
    kept = {"storage": str(tmp_path / "kept.log"), "budget": 8}
    for offset, calls in ((0, 2), (0, 2), (1, 4)):
        x, y = np.arange(40.0).reshape(20, 2) + offset, np.arange(20) % 2
        searched(monkeypatch, played, data=Dataset.of(x, y), **kept)
        assert len(played.keys) == calls


@pytest.mark.nightly
def test_searches_share_a_storage_and_compile_in_the_first_generation(monkeypatch, tmp_path):
    compilations, compiled = Compilations(), []

    def counted(*arguments, **options):
        before = compilations.programs
        result = sweep(*arguments, **options)
        compiled.append(compilations.programs - before)
        return result

    monkeypatch.setattr(tuning, "sweep", counted)
    options = {"budget": 24, "seeds": 2, "storage": str(tmp_path / "kept.log")}
    zero, one = (tune(BASE, axes_of(), LOSS, jax.random.key(seed), **options) for seed in (0, 1))
    # Three generations and the finalists, whose batch has another shape.
    assert compiled[1:3] == [0, 0]
    assert compiled[4:] == [0] * 4
    assert compiled[0] > 0
    assert len(set(rates(zero)) | set(rates(one))) == 48
    again = tune(BASE, axes_of(), LOSS, KEY, **options)
    assert len(compiled) == 8, "a finished search runs nothing"
    assert again.trials.equals(zero.trials)
    pd.testing.assert_frame_equal(again.finalists, zero.finalists, check_dtype=False)
    assert again.best == zero.best


def test_the_initial_config_is_chosen_if_none_is_better(monkeypatch):
    initial = float(BASE.learning.learning_rate)

    def promising(rate, fresh, seed):
        """Better than the initial config in the search, worse with fresh seeds."""
        return 1.0 if abs(rate - initial) < 1e-6 else (0.0 if fresh else 2.0)

    found = searched(monkeypatch, Played(promising))
    assert found.best == BASE
    assert found.chosen == len(found.finalists) - 1 == 3
    assert found.finalists.searched[0] == 2
    assert found.finalists.change.tolist() == [-1, -1, -1, 0]
    # It wins a tie, also where nothing has a score.
    for same in (5.0, NAN):
        assert searched(monkeypatch, Played(lambda *_, same=same: same)).best == BASE
    # Negative control.
    better = searched(monkeypatch, Played(lambda rate, *_: rate))
    assert better.chosen == 0
    assert rate_of(better) > initial


def test_finalists_meet_seeds_that_the_search_has_not_seen(monkeypatch):
    played = Played(lambda rate, *_: rate)
    found = searched(monkeypatch, played)
    *search, fresh = played.keys
    assert len(set(fresh)) == len(fresh) == found.finalists.seeds[0] == 8
    assert not set(fresh) & set(itertools.chain(*search))
    assert len(search) == 3
    assert all(keys == search[0] for keys in search), "trials meet the same worlds"


def test_runs_that_broke_a_contract_have_no_score(monkeypatch):
    class Breaks(Played):
        def __call__(self, configs, keys, **arguments):
            data = super().__call__(configs, keys, **arguments)
            rates = [float(config.learning.learning_rate) for config in configs]
            broken = np.asarray(rates)[:, None] > np.zeros(len(keys)) + 10
            return data.assign(first_broken_round=(("config", "seed"), broken * 3))

    assert 1 < rate_of(searched(monkeypatch, Breaks(lambda rate, *_: rate))) <= 10


def test_choices_may_fix_the_program():
    config = BASE.replace(learning=None, num_clients=4)
    axes = axes_of(["policy=random,fastest", "reward.gamma=1..2"], config)
    found = tune(config, axes, tuning.objective_of("seconds"), KEY, budget=8, seeds=2)
    assert set(found.trials.policy) == {"random", "fastest"}
    assert found.best.policy == named("fastest")
    assert found.finalists.policy.iloc[-1] == config.policy.name


@pytest.fixture
def said(monkeypatch, caplog):
    """What the search logs. Another test's libraries may have disabled its logger."""
    monkeypatch.setattr(logging.getLogger("pause_jax"), "disabled", False)
    caplog.set_level("INFO", "pause_jax")
    return caplog


def test_cohort_size_search_scores_equal_simulate(said):
    config = BASE.replace(learning=None, num_clients=4, num_rounds=6)
    axes = axes_of(["num_selected=1..2"], config)
    options = {"budget": 8, "seeds": 2, "sampler": "RandomSampler"}
    found = tune(config, axes, tuning.objective_of("seconds"), KEY, **options)
    assert said.messages == ["num_selected requires one program per value (2 programs)."]
    # The more clients are chosen, the longer the server waits for the slowest.
    assert found.best.num_selected == 1
    means = found.trials.groupby("num_selected")["mean"].first()
    assert means.index.tolist() == [1, 2]
    keys = jax.random.split(jax.random.split(KEY)[0], 2)
    for number, mean in means.items():
        alone = config.replace(num_selected=number)
        seconds = [float(simulate(alone, key, record=("clock",)).clock[-1]) for key in keys]
        assert mean == pytest.approx(np.mean(seconds), rel=1e-6)


@pytest.mark.parametrize("name", ["axes", "budget", "seeds", "width"])
def test_bad_arguments_are_refused_before_any_run(name, monkeypatch):
    monkeypatch.setattr(tuning, "sweep", None)
    arguments = {"axes": axes_of()} | {name: {} if name == "axes" else 0}
    with pytest.raises(ConfigError, match=f"{name} = 0: must be >= 1"):
        tune(BASE, objective=LOSS, key=KEY, **arguments)


@pytest.mark.parametrize(
    ("text", "config", "words"),
    [
        ("seconds to 80 %", BASE, r"requires test_accuracy.* Use loss or seconds\."),
        ("regret", BASE, "requires regret"),
        ("accuracy", BASE.replace(learning=None, track_regret=True), ".* Use regret or seconds"),
        ("loss", BASE.replace(learning=None), r"requires test_loss.* Use seconds\."),
    ],
)
def test_an_undefined_objective_is_refused_before_any_run(text, config, words, monkeypatch):
    monkeypatch.setattr(tuning, "sweep", None)
    with pytest.raises(ConfigError, match=f"--objective {text!r}: {words}"):
        tune(config, axes_of(["reward.gamma=0..1"], config), tuning.objective_of(text), KEY)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reward.gamma", "must be PATH=LOW..HIGH"),
        ("reward.gamma=2..1", "must be PATH=LOW..HIGH"),
        ("reward.gamma=0..inf", "reward.gamma = inf"),
        ("reward.gama=0..1", "no field 'gama'"),
        ("reward.gamma=-1..1", "reward.gamma = -1.0"),
        ("availability=0.5..2", "availability = 2.0"),
        ("num_clients=1..10", "num_selected = 5: must be <= num_clients = 1"),
        ("num_selected=5..31", "num_selected = 31: must be <= num_clients = 30"),
        ("num_selected=log:0..3", "must be PATH=LOW..HIGH"),
        ("policy=0..1", "policy does not support ranges. List its values: policy=A,B"),
    ],
)
def test_a_bad_axis_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        tuning.axis_of(text, presets.digits_small())


@pytest.mark.parametrize("text", ["speed", "seconds to 0 %", "seconds to 120 %", "seconds to 80"])
def test_an_unknown_objective_is_refused(text):
    with pytest.raises(ConfigError, match="--objective"):
        tuning.objective_of(text)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("sampler", tuning.SAMPLERS)
def test_named_samplers_propose_or_name_the_missing_package(sampler, monkeypatch):
    played = Played(lambda rate, *_: rate)
    package = tuning.SAMPLERS[sampler]
    if importlib.util.find_spec(package):
        assert len(set(rates(searched(monkeypatch, played, sampler)))) == 24
    else:
        with pytest.raises(
            ConfigError, match=f"--sampler {sampler}: requires {package}. Run pip install"
        ):
            searched(monkeypatch, played, sampler)
        assert played.keys == []


@pytest.mark.parametrize(
    "sampler", ["grid", "GridSampler", "BaseSampler", "PartialFixedSampler", "BruteForceSampler"]
)
def test_samplers_that_need_arguments_are_refused_before_any_run(sampler, monkeypatch):
    played = Played(lambda rate, *_: rate)
    words = f"--sampler {sampler}: must be one of TPESampler, RandomSampler"
    with pytest.raises(ConfigError, match=words):
        searched(monkeypatch, played, sampler)
    assert played.keys == []


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("missing/kept.log", "No such file or directory"),
        (".", "Is a directory"),
        ("redis://host", "cannot be opened"),
        ("sqlite:////missing/kept.db", "unable to open database file"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_refused_before_any_run(
    storage, words, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    played = Played(lambda rate, *_: rate)
    with pytest.raises(ConfigError, match=f"^--storage .*{words}"):
        searched(monkeypatch, played, storage=storage)
    assert played.keys == []


def test_missing_optuna_prints_install_hint(monkeypatch):
    monkeypatch.delitem(sys.modules, "pause_jax.tuning")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pause_jax\[tune\]"):
        import pause_jax.tuning  # noqa: F401


def command(monkeypatch, folder, *arguments):
    monkeypatch.chdir(folder)
    return run("tune", *arguments)


SEARCH = (
    "mine.toml", "--vary", VARY[0], "--vary", VARY[1], "--objective", "loss",
    "--budget", "16", "--seeds", "4", "--storage", "kept.log",
)  # fmt: skip


def test_a_stopped_search_resumes_with_the_same_figures(monkeypatch, tmp_path, capsys, said):
    (tmp_path / "mine.toml").write_text(config_file.dumps(BASE))
    assert command(monkeypatch, tmp_path, *SEARCH, "--storage", "whole.log") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in ("initial", "best of 16 configs", "learning", "Written to results/tune-mine"):
        assert words in printed
    assert re.search(r"[123] \* .* -[0-9.]+", printed), "a tuned loss is lower with fresh seeds"
    calls = itertools.count()

    def stopped(*arguments, **options):
        if next(calls) == 1:
            raise SweepInterrupted("stopped", None) from KeyboardInterrupt()
        return sweep(*arguments, **options)

    unfinished = (*SEARCH[:-2], "--name", "stopped", "--resume")
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "sweep", stopped)
        assert command(patch, tmp_path, *unfinished) == 130
    error = " ".join(capsys.readouterr().err.split())
    assert "Run the same command with --resume to continue." in error
    assert command(monkeypatch, tmp_path, *unfinished) == 0
    whole, stopped = (tmp_path / "results" / name for name in ("tune-mine", "stopped"))
    for name in ("trials.csv", "best.toml"):
        assert (stopped / name).read_text() == (whole / name).read_text()
    printed = capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "sweep", None)
        assert command(patch, tmp_path, *unfinished) == 0
    assert said.messages == ["Nothing left to run."]
    assert capsys.readouterr().out == printed
    with (whole / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    columns = ("learning.learning_rate", "learning.server.momentum", "seeds", "scored", "mean")
    assert list(rows[0]) == [*columns, "error"]
    best = float(config_file.load(whole / "best.toml").learning.learning_rate)
    assert any(float(row["learning.learning_rate"]) == pytest.approx(best) for row in rows)


def test_a_bad_command_leaves_no_folder(monkeypatch, tmp_path, capsys):
    for arguments, word in (
        (("digits_small",), "--vary"),
        (("digits_small", *("--vary", "reward.gamma=0..1") * 2), "--vary: must name each field"),
        (("bsfl_linear", "--vary", "reward.gamma=1..5"), "--objective 'seconds to 80 %'"),
    ):
        assert command(monkeypatch, tmp_path, *arguments) == 2
        assert word in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("results/*"))


WORKER = """
import sys
from tests.test_tuning import BASE, KEY, LOSS, SHARED, axes_of, tune

tune(BASE, axes_of(), LOSS, KEY, **SHARED, storage=sys.argv[1])
"""
SHARED = {"budget": 32, "seeds": 2}


@pytest.mark.nightly
def test_processes_share_a_storage(tmp_path, monkeypatch):
    storage = f"sqlite:///{tmp_path}/trials.db"
    optuna.storages.RDBStorage(storage)  # two processes that create its tables at once collide
    worker = subprocess.Popen([sys.executable, "-c", WORKER, storage], cwd=ROOT)
    while worker.poll() is None and not optuna.get_all_study_names(storage):
        time.sleep(0.05)
    tune(BASE, axes_of(), LOSS, KEY, **SHARED, storage=storage)
    assert worker.wait(timeout=600) == 0
    study = optuna.load_study(study_name=None, storage=storage)
    trials = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    assert 32 <= len(trials) <= 40, "the processes share the budget"
    assert len({tuple(trial.params.values()) for trial in trials}) == len(trials)
