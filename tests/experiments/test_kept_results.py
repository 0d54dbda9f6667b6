"""Kept curves, scores and verdicts are accepted by today's code, which plays nothing anew."""

import collections
import importlib
import json
import pathlib

import pytest
from matplotlib.figure import Figure

import experiments
from experiments.common import claims, curves, pause_learning
from experiments.common.learning_figure import Curves
from experiments.gauntlet import run as gauntlet
from experiments.left_behind import run as left_behind

pytestmark = pytest.mark.slow

HERE = pathlib.Path(experiments.__file__).parent
WITH_CURVES = sorted({path.parents[1].name for path in HERE.glob("*/runs/*.csv")})
WITH_VERDICTS = sorted(path.parent.name for path in HERE.glob("*/verdicts.jsonl"))
MOST_SEEDS = 20
# Experiments whose claims are one family; elsewhere each figure has its own.
ONE_FAMILY = ("event_clock", "few_parameters", "left_behind", "local_epochs", "unequal_budgets")
# Checks that the kept output of an experiment passed.
CHECKS = {
    "best_mixture": 7, "bsfl_fig_2": 10, "bsfl_fig_4": 4, "bsfl_figs_5_6": 7, "bsfl_figs_7_10": 16,
    "cifar10_small": 6, "event_clock": 12, "few_parameters": 2, "index_rules": 4,
    "local_epochs": 3, "mnist_mlp_30_5": 9, "noise_cost": 20, "pause_fig_1": 9, "pause_table_1": 16,
    "regret_bound": 6, "regret_horizon": 5, "regret_policies": 16, "search_gap": 2,
    "search_laboratory": 6, "unequal_budgets": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    """Skip drawing: test_curves.py and test_gauntlet.py draw pictures."""
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)


@pytest.fixture
def asked(monkeypatch):
    """The runs that an experiment asks for, by label; the test fails if one would be played."""
    found: dict[str, curves.Run] = {}
    read = curves._table

    def recorded(run, *given):
        found[run.label] = run
        return read(run, *given)

    monkeypatch.setattr(curves, "_table", recorded)
    monkeypatch.setattr(curves, "_play", lambda run, *_: pytest.fail(f"{run.name} is not kept"))
    return found


def without_leakage(monkeypatch, out):
    """Draw the leakage of kept runs: that of the figures is played on 20 seeds."""

    def of_kept_runs(configs):
        private = {k: v for k, v in configs.items() if k != pause_learning.WITHOUT_PRIVACY}
        return Curves(curves.play_all(curves.runs_of(private, 2), out))

    monkeypatch.setattr(pause_learning, "leakage", of_kept_runs)
    monkeypatch.setattr(pause_learning, "leakage_lines", lambda leaked: [])
    monkeypatch.setattr(pause_learning, "leakage_claims", lambda leaked, against: [])


def test_all_learning_experiments_of_the_papers_have_kept_curves():
    assert len(WITH_CURVES) >= 10
    assert sum(len(list(HERE.glob(f"{folder}/runs/*.csv"))) for folder in WITH_CURVES) >= 345


@pytest.mark.nightly
@pytest.mark.parametrize("folder", WITH_CURVES)
def test_kept_curves_are_read_and_give_the_kept_output(folder, asked, monkeypatch, tmp_path):
    kept = HERE / folder
    (tmp_path / "runs").symlink_to(kept / "runs")
    without_leakage(monkeypatch, tmp_path)
    importlib.import_module(f"experiments.{folder}.run").main(out=tmp_path)
    then, now = ((at / "output.txt").read_text("utf-8").splitlines() for at in (kept, tmp_path))
    assert [line for line in now if line not in then] == []
    assert len(now) > len(asked)
    runs = [run._replace(seed=seed) for run in asked.values() for seed in range(MOST_SEEDS)]
    of_file = {run.name: run for run in runs}
    for path in (kept / "runs").glob("*.csv"):
        assert path.read_text().startswith(f"# {of_file[path.stem].made_by} "), path.name


@pytest.mark.parametrize("experiment", [gauntlet, left_behind], ids=lambda each: each.HERE.name)
def test_kept_scores_are_read_and_give_the_kept_output(experiment, monkeypatch, tmp_path):
    (tmp_path / "kept").symlink_to(experiment.HERE / "kept")
    monkeypatch.setattr(gauntlet, "sweep", lambda *_, **__: pytest.fail("a score is not kept"))
    experiment.main(out=tmp_path)
    then, now = (at / "output.txt" for at in (experiment.HERE, tmp_path))
    assert now.read_text("utf-8") == then.read_text("utf-8")


@pytest.mark.parametrize("folder", WITH_VERDICTS)
def test_kept_verdicts_follow_from_their_numbers(folder):
    here = HERE / folder
    families = collections.defaultdict(list)
    for line in (here / "verdicts.jsonl").read_text("utf-8").splitlines():
        kept = json.loads(line)
        figure = "" if folder in ONE_FAMILY else kept["claim"].split(":")[0]
        families[figure].append(kept)
    printed = (here / "output.txt").read_text("utf-8")
    for family in families.values():
        judged = claims.judge([claims.from_record(each) for each in family])
        assert [(each["verdict"], each["evidence"]) for each in family] == [
            (each.verdict, each.evidence) for each in judged
        ]
        assert all(str(verdict) in printed for verdict in judged)
        alone = [each for each in judged if "one seed" in each.evidence]
        assert {each.verdict for each in alone} <= {"open"}


@pytest.mark.parametrize(
    "path", sorted(HERE.glob("*/output.txt")), ids=lambda path: path.parent.name
)
def test_kept_output_passed_every_check_and_has_pictures(path):
    text, folder = path.read_text("utf-8"), path.parent.name
    assert "FAIL" not in text
    assert text.count("\nok ") == CHECKS.get(folder, 0)
    pictures = list(path.parent.glob("figures/*.png"))
    assert pictures
    assert all(10_000 < picture.stat().st_size < 400_000 for picture in pictures)
