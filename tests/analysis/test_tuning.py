"""The search for good numbers: what is asked, what is found, and whether it holds."""

import contextlib
import csv
import functools
import io
import itertools
import pathlib
import subprocess
import sys

import jax
import numpy as np
import optuna
import pytest
import xarray as xr

from pause_jax import (
    ConfigError,
    SimConfig,
    cli,
    config_file,
    presets,
    simulate,
    stack,
    sweep,
)
from pause_jax.analysis import space, tuning
from pause_jax.learning import Digits, FedAvgM, Learning, Linear, LinearRegression
from pause_jax.policies import named
from pause_jax.privacy import NoPrivacy
from pause_jax.run import contract
from pause_jax.sweeps import batch, execute, leases

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
KEY = jax.random.key(0)
BASE = SimConfig(
    num_clients=6, num_selected=3, num_rounds=12, eval_every=12, track_regret=False,
    policy=named("random"), privacy=NoPrivacy(),
    learning=Learning(
        data=LinearRegression(num_samples=120), model=Linear(), optimizer="sgd", max_steps=2,
        batch_size=10, server=FedAvgM(rate=1.0, momentum=0.5),
    ),
)  # fmt: skip
VARY = (
    "learning.learning_rate=log:0.001..1",
    "learning.server.momentum=0..0.95",
    "learning.server.rate=log:0.1..3",
)
LOSS = space.objective_of("loss")
# Two generations of 8 configs: with 4 seeds all searches are one program.
SMALL = {"budget": 16, "seeds": 4}


def axes_of(vary=VARY, config=BASE):
    return [space.axis_of(text, config) for text in vary]


def at(axis, share):
    """The value at a share of the range."""
    if axis.log:
        return axis.low * (axis.high / axis.low) ** share
    return axis.low + (axis.high - axis.low) * share


def tune(config, axes, objective, key, **search):
    return tuning.tune(config, axes, objective, key, search=tuning.Search(**search), progress=False)


# Runs of a call of `side_by_side`; all calls have as many, so that they are one program.
TOGETHER_IN_A_CALL = 576


@jax.jit
def side_by_side(configs, keys):
    """The loss at the end of each run: the bits of a sweep, without its tables for each config."""
    return jax.vmap(lambda config, key: simulate(config, key, record=LOSS.record).test_loss[-1])(
        configs, keys
    )


def losses(configs, keys):
    """[configs, keys]"""
    stacked = jax.tree.map(np.asarray, stack(configs))
    runs = np.arange(len(configs) * len(keys))
    parts = [
        side_by_side(jax.tree.map(lambda x, own=own: x[own // len(keys)], stacked),
                     keys[own % len(keys)])
        for own in np.split(runs, len(runs) // TOGETHER_IN_A_CALL)
    ]  # fmt: skip
    return np.concatenate(parts).reshape(len(configs), len(keys))


def test_it_is_as_good_as_a_full_grid_of_eight_times_its_budget():
    """Behind by 0.4 +- 1.1 % of the loss in 12 searches, and a random search by 61 %; two are
    asked for 5 %.
    """
    axes, compared = axes_of(), []
    points = itertools.product(np.linspace(0, 1, 6), repeat=3)
    grid = [
        BASE.override({axis.path: at(axis, share) for axis, share in zip(axes, point, strict=True)})
        for point in points
    ]
    assert len(grid) == 8 * 27
    own = [jax.random.split(jax.random.split(jax.random.key(seed))[0], 4) for seed in range(2)]
    of_grids = np.split(losses(grid, jax.numpy.concatenate(own)), 2, axis=1)
    for seed, of_grid in enumerate(of_grids):
        found = tune(BASE, axes, LOSS, jax.random.key(seed), budget=27, seeds=4)
        assert len(found.trials) == 27
        best, worse = (grid[place] for place in np.argsort(of_grid.mean(1))[[0, 10]])
        compared += [best, found.best, worse]
        began, chosen = found.finalists[-1][1], found.finalists[found.chosen][1]
        assert chosen.mean < began.mean
    fresh = losses(compared, jax.random.split(jax.random.key(100), 96)).mean(1)
    best, ours, worse = fresh.reshape(2, 3).mean(0)
    assert ours < 1.05 * best, fresh
    # Negative control: the eleventh best of the grid is not as good.
    assert worse > 1.05 * best


@functools.cache
def search_of(method):
    """A search over one axis, and (batch, chunks) of each of its programs."""
    shapes = []

    def counted(runs, *rest):
        shapes.append((runs.chunking.batch, len(runs.chunking.firsts)))
        return batch.run_chunks(runs, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "run_chunks", counted)
        found = tune(BASE, axes_of(VARY[:1]), LOSS, KEY, budget=24, seeds=4, method=method)
    return found, shapes


@pytest.mark.parametrize("method", tuning.METHODS)
def test_every_method_finds_better_numbers_and_compiles_twice_at_most(method):
    found, shapes = search_of(method)
    assert len(set(shapes)) <= 2, "batches of other shapes compile anew"
    assert len(shapes) >= 4
    chosen, began = found.finalists[found.chosen][1], found.finalists[-1][1]
    assert chosen.mean < began.mean
    fresh = [again.mean for _, again in found.finalists[:-1]]
    assert chosen.mean == min(fresh)
    for values in chosen.values.items():
        assert config_file.to_dict(found.best)["learning"]["learning_rate"] == pytest.approx(
            values[1]
        )
    assert np.isfinite(found.curse)


def test_halving_gives_the_better_half_twice_as_many_seeds():
    found, _ = search_of("halving")
    sizes = [trial.scores.size for trial in found.trials]
    assert sizes == sorted(sizes)
    # 16 runs a rung: 16 configs, 8, 4; seeds 1, 3, 7 in all.
    assert {size: sizes.count(size) for size in set(sizes)} == {1: 8, 3: 4, 7: 4}
    worst = min(trial.scores[0] for trial in found.trials if trial.scores.size == 1)
    assert worst >= max(trial.scores[0] for trial in found.trials if trial.scores.size > 1)


def test_the_best_of_many_equal_configs_is_too_good_to_be_true():
    # The numbers varied change nothing: what is best in the search is chance alone.
    config = BASE.replace(num_selected=2, num_rounds=5, eval_every=5, learning=None)
    axes = [space.axis_of("reward.gamma=0..1", config)]
    curses = []
    for seed in range(3):
        found = tune(
            config, axes, space.objective_of("seconds"), jax.random.key(seed), budget=8,
            seeds=4, method="random",
        )  # fmt: skip
        assert len({trial.mean for trial in found.trials}) == 1, "the same worlds for all"
        curses.append(found.curse)
    assert len(set(curses)) == 3


def result(accuracy, clock):
    """A sweep's result of one config with these accuracies at these seconds."""
    rows = np.asarray(accuracy, float)
    seconds = np.broadcast_to(np.asarray(clock, float), rows.shape)
    dims = ("config", "seed", "eval_round")
    return xr.Dataset(
        {"test_accuracy": (dims, rows[None]), "eval_clock": (dims, seconds[None])},
    )


def test_a_target_that_was_never_reached_has_no_seconds():
    aim = space.objective_of("seconds to 80 %")
    runs = [[0.1, 0.85, 0.9], [0.1, 0.5, 0.8], [0.1, 0.5, 0.79], [0.1, 0.2, 0.3], [np.nan] * 3]
    seen = result(runs, [10, 20, 30])
    np.testing.assert_array_equal(aim.value(seen).values[0], [20, 30, np.nan, np.nan, np.nan])
    assert aim.near is not None
    np.testing.assert_allclose(aim.near(seen).values[0], [0.9, 0.8, 0.79, 0.3, 0])
    assert aim.sign == 1
    assert space.objective_of("accuracy").sign == -1


def trial(*scores, near=0.0):
    return tuning.Trial({}, np.asarray(scores, float), np.full(len(scores), near))


NAN, INF = np.nan, np.inf
# Best first, if small is good.
ORDER = [
    trial(-5.0, -5.0),
    trial(1.0, 2.0),
    trial(1e6, 1e6),
    trial(1e6, 1e6 + 1e-3),
    trial(3.0, NAN),
    trial(INF, 4.0),
    trial(NAN, 4e9),
    trial(NAN, NAN, near=0.7),
    trial(NAN, -INF, near=0.3),
]


def test_one_order_puts_what_has_no_score_last():
    places = [tuning.badness(each, 1) for each in ORDER]
    assert np.isfinite(places).all()
    assert (np.diff(places) > 0).all()
    # If large is good, means turn round; what is incomplete stays behind what is complete.
    large = [tuning.badness(each, -1) for each in ORDER]
    assert np.argsort(large).tolist() == [3, 2, 1, 0, 6, 5, 4, 7, 8]
    assert tuning.badness(trial(NAN, 1.0, 1.0), 1) < tuning.badness(trial(NAN, NAN, 0.0), 1)
    assert [each.mean for each in (trial(3.0, NAN), trial(INF, 1.0, 2.0))] == [3.0, 1.5]
    assert np.isnan(trial(NAN).mean)
    assert np.isnan(trial(3.0, NAN).error)
    assert trial(1.0, 3.0, NAN).error == pytest.approx(1.0)


class Played:
    """A ``sweep`` whose runs have the score that a function gives them, and the keys it was given.

    Attributes:
      score: (learning rate, whether the seeds are fresh, number of the seed) -> score.
      near: the same, of how near a run came.
      keys: of each call, as tuples of words.
    """

    def __init__(self, score, near=lambda rate: 0.0):
        self.score, self.near, self.keys = score, near, []

    def __call__(self, configs, keys, **arguments):
        self.keys.append([tuple(words) for words in jax.random.key_data(keys).tolist()])
        assert set(contract.RECORDED) <= set(arguments["record"])
        rates = [float(config.learning.learning_rate) for config in configs]
        # The search and its finalists are told apart by their seeds.
        fresh = not set(self.keys[-1]) & set(self.keys[0]) and len(self.keys) > 1
        scores = [[self.score(r, fresh, i) for i in range(len(keys))] for r in rates]
        near = [[self.near(rate)] * len(keys) for rate in rates]
        dims = ("config", "seed")
        return xr.Dataset(
            {
                "score": (dims, np.asarray(scores)),
                "near": (dims, np.asarray(near)),
                "first_broken_round": (dims, np.zeros((len(rates), len(keys)), int)),
            }
        )


def searched(monkeypatch, played, method="random", sign=-1, key=KEY, **arguments):
    """What a search over learning rates of 1e-2 to 1e6 finds, without any run."""
    monkeypatch.setattr(tuning, "sweep", played)
    aim = space.Objective("score", sign, (), lambda data: data.score, near=lambda data: data.near)
    axes = [space.axis_of("learning.learning_rate=log:1e-2..1e6", BASE)]
    given = {"budget": 24, "seeds": 4, "width": 8} | arguments
    return tune(BASE, axes, aim, key, method=method, **given)


RATE = float(BASE.learning.learning_rate)


def rate_of(found):
    return float(found.best.learning.learning_rate)


@pytest.mark.parametrize("method", tuning.METHODS)
def test_the_same_key_proposes_the_same(method, monkeypatch):
    """With real runs: test_a_search_that_was_stopped_goes_on_with_the_same_figures."""
    one, same, other = (
        searched(monkeypatch, Played(lambda rate, *_: rate), method, key=jax.random.key(seed))
        for seed in (0, 0, 1)
    )
    assert [trial.values for trial in one.trials] == [trial.values for trial in same.trials]
    assert one.best == same.best
    assert [trial.values for trial in one.trials] != [trial.values for trial in other.trials]


@pytest.mark.parametrize("method", tuning.METHODS)
@pytest.mark.parametrize("bad", [NAN, -INF, INF])
def test_a_search_among_configs_that_diverge_chooses_a_finite_one(method, bad, monkeypatch):
    """The larger the rate the better, but above 100 nothing is finite, and in the second seed
    nothing above 1.
    """

    def score(rate, fresh, seed):
        return bad if rate > 100 or (rate > 1 and seed == 1) else rate

    found = searched(monkeypatch, Played(score), method)
    assert 0.1 < rate_of(found) <= 1
    whole = [each.values["learning.learning_rate"] for each in found.trials if each.is_complete]
    seen, _ = found.finalists[0]
    if method != "halving":
        assert seen.values["learning.learning_rate"] == max(whole)
        assert len(whole) < len(found.trials)


def test_optuna_is_told_the_same_order(monkeypatch):
    """NaN it would take for a trial that failed, and forget."""
    told, tell = [], optuna.study.Study.tell

    def listening(study, each, value, **options):
        told.append(value)
        return tell(study, each, value, **options)

    def score(rate, fresh, seed):
        return NAN if rate > 1 and seed == 1 else rate

    monkeypatch.setattr(optuna.study.Study, "tell", listening)
    found = searched(monkeypatch, Played(score), "tpe", budget=64)
    assert told == [tuning.badness(each, -1) for each in found.trials]
    late = [each.values["learning.learning_rate"] for each in found.trials[32:]]
    # Three quarters of the range are above 1.
    assert np.mean(np.asarray(late) <= 1) > 0.4


@pytest.mark.parametrize("method", tuning.METHODS)
def test_where_nothing_has_a_score_the_nearest_is_found(method, monkeypatch):
    def near(rate):
        return 0.9 - 0.1 * abs(np.log10(rate) - 4)

    found = searched(monkeypatch, Played(lambda *_: NAN, near), method, sign=1)
    assert abs(np.log10(rate_of(found)) - 4) < 1
    assert not any(each.scored.size for each in found.trials)


@pytest.mark.parametrize("method", ["tpe", "random"])
def test_a_budget_that_is_no_multiple_of_the_width_is_kept(method, monkeypatch):
    """The last generation is filled up, so that it compiles nothing new; the rest is left out."""
    found = searched(monkeypatch, Played(lambda rate, *_: rate), method, budget=10)
    assert len(found.trials) == 10


def test_the_config_where_the_search_began_is_chosen_if_none_is_better(monkeypatch):
    def promising(rate, fresh, seed):
        """Better than the start in the search, worse with fresh seeds."""
        return 1.0 if abs(rate - RATE) < 1e-6 else (0.0 if fresh else 2.0)

    found = searched(monkeypatch, Played(promising))
    assert found.best == BASE
    assert found.chosen == len(found.finalists) - 1 == 3
    # Of equals, and where nothing has a score, it stays, too.
    for same in (5.0, NAN):
        assert searched(monkeypatch, Played(lambda *_, same=same: same)).best == BASE
    # Negative control.
    better = searched(monkeypatch, Played(lambda rate, *_: rate))
    assert better.chosen == 0
    assert rate_of(better) > RATE


@pytest.mark.parametrize("method", tuning.METHODS)
def test_finalists_meet_seeds_that_the_search_has_not_seen(method, monkeypatch):
    played = Played(lambda rate, *_: rate)
    found = searched(monkeypatch, played, method)
    *search, fresh = played.keys
    assert len(set(fresh)) == len(fresh) == found.finalists[0][1].scores.size == 8
    assert not set(fresh) & set(itertools.chain(*search))
    if method == "halving":
        # Each rung has seeds of its own: more of the same would be no evidence.
        assert len(set(itertools.chain(*search))) == sum(map(len, search))
    else:
        assert all(keys == search[0] for keys in search), "trials meet the same worlds"


def test_runs_that_broke_a_contract_have_no_score(monkeypatch):
    class Breaks(Played):
        def __call__(self, configs, keys, **arguments):
            data = super().__call__(configs, keys, **arguments)
            rates = [float(config.learning.learning_rate) for config in configs]
            broken = np.asarray(rates)[:, None] > np.zeros(len(keys)) + 10
            return data.assign(first_broken_round=(("config", "seed"), broken * 3))

    assert 1 < rate_of(searched(monkeypatch, Breaks(lambda rate, *_: rate))) <= 10


@pytest.mark.parametrize(
    ("text", "config", "words"),
    [
        ("seconds to 80 %", BASE, r"needs a task with an accuracy.* Take loss or seconds\."),
        ("accuracy", BASE, "needs a task with an accuracy"),
        ("regret", BASE, "needs track_regret = true"),
        (
            "accuracy",
            BASE.replace(learning=None, track_regret=True),
            ".* Take regret or seconds",
        ),
        ("loss", BASE.replace(learning=None), r"needs learning\. Take seconds\."),
    ],
)
def test_an_objective_that_is_not_defined_is_refused_before_any_run(
    text, config, words, monkeypatch
):
    monkeypatch.setattr(tuning, "sweep", None)
    axes = [space.axis_of("reward.gamma=0..1", config)]
    with pytest.raises(ConfigError, match=f"--objective {text!r}: {words}"):
        tune(config, axes, space.objective_of(text), KEY)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reward.gamma", "must be PATH=LOW..HIGH"),
        ("reward.gamma=1,2", "must be PATH=LOW..HIGH"),
        ("reward.gamma=2..1", "LOW < HIGH"),
        ("reward.gamma=log:0..1", "by factors .* > 0"),
        ("reward.gama=0..1", "no field 'gama'"),
        ("reward.gamma=-1..1", "reward.gamma = -1.0"),
        ("availability=0.5..2", "availability = 2.0"),
        ("num_clients=5..10", "cannot|can change within one program"),
        ("policy=0..1", "can change within one program"),
        ("reward.gamma=0..inf", "must be PATH=LOW..HIGH"),
    ],
)
def test_a_range_that_is_none_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        space.axis_of(text, presets.digits_small())


@pytest.mark.parametrize("text", ["speed", "seconds to 0 %", "seconds to 120 %", "seconds to 80"])
def test_an_objective_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="--objective"):
        space.objective_of(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"axes": []}, "--vary is missing"),
        ({"axes": axes_of(VARY[:1] * 2)}, "is varied twice"),
        ({"budget": 2}, "--budget 2: must be >= 3"),
        ({"seeds": 0}, "--seeds 0"),
        ({"method": "grid"}, "--method grid: must be one of"),
    ],
)
def test_bad_arguments_are_refused_before_any_run(changes, words, monkeypatch):
    monkeypatch.setattr(tuning, "sweep", None)
    axes = changes.pop("axes", axes_of())
    with pytest.raises(ConfigError, match=words):
        tune(BASE, axes, LOSS, KEY, **changes)


def test_without_optuna_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pause_jax\[tune\]"):
        tune(BASE, axes_of(), LOSS, KEY, method="random")


def command(monkeypatch, folder, *arguments):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["pause-jax", "tune", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code or 0


SEARCH = (
    "mine.toml", "--vary", VARY[0], "--vary", VARY[1], "--objective", "loss",
    "--budget", "16", "--seeds", "4",
)  # fmt: skip


@pytest.fixture(scope="module")
def searched_in_store(tmp_path_factory):
    """(folder, what was printed) after a search by the command, with a store in the folder."""
    folder, printed = tmp_path_factory.mktemp("tune"), io.StringIO()
    (folder / "mine.toml").write_text(config_file.dumps(BASE))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        assert command(patch, folder, *SEARCH, "--store", "kept") == 0
    return folder, " ".join(printed.getvalue().split())


def test_the_command_writes_config_trials_and_picture(searched_in_store):
    root, printed = searched_in_store
    assert "never" not in printed
    for words in ("initial", "fresh seeds", "Of 16 configs the best promised", "learning_rate"):
        assert words in printed
    folder = root / "results" / "tune-mine"
    best = config_file.load(folder / "best.toml")
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    rates = [float(row["learning.learning_rate"]) for row in rows]
    assert any(abs(float(best.learning.learning_rate) / rate - 1) < 1e-5 for rate in rates)
    assert (folder / "response.png").stat().st_size > 5_000


def test_the_command_says_never(monkeypatch, tmp_path, capsys):
    """99 % in 3 rounds: nothing reaches it, and no seconds are printed."""
    config = BASE.replace(num_rounds=3, eval_every=3).override(
        {"learning.data": Digits(num_train=120), "learning.max_steps": 1}
    )
    (tmp_path / "mine.toml").write_text(config_file.dumps(config))
    arguments = ["mine.toml", "--vary", VARY[0], "--objective", "seconds to 99 %"]
    arguments += ["--budget", "4", "--width", "4", "--method", "random"]
    assert command(monkeypatch, tmp_path, *arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "the best promised never (0/3) and gave never (0/3) with seeds" in printed
    assert "No finalist has a value" in printed
    with (tmp_path / "results" / "tune-mine" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["seeds"], row["scored"], row["mean"]) for row in rows] == [("3", "0", "nan")] * 4


def test_a_command_that_cannot_run_leaves_no_folder(monkeypatch, tmp_path, capsys):
    linear = ("bsfl_linear", "--vary", "reward.gamma=1..5")
    for arguments, word in (
        (("digits_small",), "--vary"),
        (("digits_small", "--vary", "num_clients=1..5"), "--vary"),
        (linear, "--objective 'seconds to 80 %'"),
    ):
        assert command(monkeypatch, tmp_path, *arguments) == 2
        assert word in " ".join(capsys.readouterr().err.split())
    assert not list((tmp_path / "results").glob("*")) if (tmp_path / "results").exists() else True


def test_a_search_that_was_stopped_goes_on_with_the_same_figures(
    searched_in_store, monkeypatch, tmp_path, capsys
):
    (tmp_path / "mine.toml").write_text(config_file.dumps(BASE))
    arguments = [*SEARCH, "--no-figures", "--name", "stopped"]
    generations, play = itertools.count(), batch.run_chunks

    def stopped(*args):
        if next(generations) == 1:
            raise KeyboardInterrupt
        return play(*args)

    with monkeypatch.context() as patch:
        patch.setattr(execute, "run_chunks", stopped)
        assert command(patch, tmp_path, *arguments) == 130
    assert "--resume goes on" in capsys.readouterr().err
    other = [*arguments, "--seed", "5", "--resume"]
    assert command(monkeypatch, tmp_path, *other) == 2
    assert "stopped was started by: pause-jax tune" in " ".join(capsys.readouterr().err.split())
    assert command(monkeypatch, tmp_path, *arguments, "--resume") == 0
    whole, stopped = searched_in_store[0] / "results/tune-mine", tmp_path / "results/stopped"
    for name in ("trials.csv", "best.toml"):
        assert (stopped / name).read_text() == (whole / name).read_text()
    assert not (stopped / "unfinished").exists()


TOGETHER = tuning.Search(budget=32, seeds=4, method="random")


def tune_together(folder, begin):
    """The trials of a search in a store; ``begin`` gets the name of each generation before this
    process runs it.
    """

    def listening(configs, keys, **arguments):
        begin(arguments["store"].name)
        return sweep(configs, keys, **arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "sweep", listening)
        patch.setattr(leases, "EXPIRES", 3.0)  # seconds until a process counts as dead
        found = tuning.tune(
            BASE, axes_of(), LOSS, KEY, search=TOGETHER, store=folder / "kept", progress=False
        )
    return [each.values for each in found.trials]


CHILD = """
import pathlib, sys, time
from pause_jax.base.compilation import use_cache
from tests.analysis.test_tuning import tune_together

def begin(name):
    print(name, flush=True)
    if name == "001":
        time.sleep(600)

use_cache()
tune_together(pathlib.Path(sys.argv[1]), begin)
"""


def test_processes_tune_together_and_one_that_dies_is_replaced(tmp_path):
    """Each generation is run to its end once; all processes find what one finds alone."""
    other = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ran = list[str]()

    def begin(name):
        ran.append(name)
        if name == "003":
            other.kill()

    try:
        assert [other.stdout.readline().strip() for _ in range(2)] == ["000", "001"]
        mine = tune_together(tmp_path, begin)
    finally:
        other.kill()
        _, error = other.communicate()
    assert not error
    assert ran == ["002", "003", "001", "finalists"], "the other's first is read, its second run"
    # What is proposed at random does not depend on who is sooner.
    alone = tune(BASE, axes_of(), LOSS, KEY, **TOGETHER._asdict())
    assert [each.values for each in alone.trials] == mine


def test_another_search_in_a_store_is_named(searched_in_store, monkeypatch):
    folder, _ = searched_in_store
    given = {"search": tuning.Search(**SMALL), "store": folder / "kept"}
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "sweep", None)
        with pytest.raises(ConfigError, match="holds another search: axes differ"):
            tuning.tune(BASE, axes_of(VARY[:1]), LOSS, KEY, progress=False, **given)
    monkeypatch.setattr(execute, "run_chunks", lambda *_: pytest.fail("a run was repeated"))
    again = tuning.tune(BASE, axes_of(VARY[:2]), LOSS, KEY, progress=False, **given)
    with (folder / "results" / "tune-mine" / "trials.csv").open() as file:
        means = [float(row["mean"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose([each.mean for each in again.trials], means, rtol=1e-5)


def test_the_command_shares_a_store(searched_in_store, monkeypatch):
    folder, _ = searched_in_store
    monkeypatch.setattr(execute, "run_chunks", lambda *_: pytest.fail("a run was repeated"))
    assert command(monkeypatch, folder, *SEARCH, "--store", "kept", "--no-figures") == 0
    one, two = (folder / "results" / name for name in ("tune-mine", "tune-mine-2"))
    assert (one / "trials.csv").read_text() == (two / "trials.csv").read_text()
    assert (one / "best.toml").read_text() == (two / "best.toml").read_text()
    assert (folder / "kept" / "trials.log").exists()
