"""The command line as a user meets it."""

import contextlib
import functools
import html
import importlib
import io
import json
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pause_jax import QUANTITIES, cli, config_file, presets
from pause_jax.cli import compare, options
from pause_jax.learning import Linear
from pause_jax.policies import NAMED
from pause_jax.privacy import (
    Budgeted,
    GaussianMechanism,
    NoPrivacy,
    PerCoordinateLaplace,
    Projected,
)
from pause_jax.world.availability import AVAILABILITY_TRACES
from pause_jax.world.latency import LATENCIES
from tests.support.command import run

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


FIGURES = ("accuracy_vs_seconds", "spent_budget_vs_rounds", "participation_per_client")
BANDIT = ("--set", "learning=none", "--set", "track_regret=false", "--rounds", "12", "--seeds", "2")
BARE = ("--no-figures", "--no-report")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """One comparison with learning, whose files the tests look at."""
    folder = tmp_path_factory.mktemp("compare")
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        status = run(
            "compare", "--policies", "random,all:none", "--rounds", "10", "--seeds", "2",
            "--target", "0.3", "--name", "mine", "--set", "learning.model=linear",
            "--set", "track_regret=false", "--per-client", "--set", "learning.holdout=0.2",
        )  # fmt: skip
    assert status == 0
    (folder / "printed.txt").write_text(printed.getvalue())
    return folder / "results" / "mine"


def test_terminal_and_report_have_same_words_in_same_order(compared):
    printed = " ".join((compared.parents[1] / "printed.txt").read_text().split())
    page = " ".join(html.unescape((compared / "report.html").read_text()).split())
    words = [
        "final test accuracy over 2 seeds",
        "fairness: Jain's index of participation.",
        "Values are maxima over clients and seeds.",
    ]
    words += ["NO GUARANTEE, because epsilon does not cover values sent without noise"]
    for text in (printed, page):
        places = [text.index(each) for each in words]
        assert places == sorted(places)


def test_compare_writes_data_configs_figures_and_summary(compared):
    files = {str(path.relative_to(compared)) for path in compared.rglob("*") if path.is_file()}
    assert files == {
        "data.nc",
        "summary.csv",
        "ledger.csv",
        "run.json",
        "report.html",
        "configs/random.toml",
        "configs/all__no_privacy.toml",
        *(f"figures/{name}.{form}" for name in FIGURES for form in ("png", "pdf", "svg")),
    }
    assert "digest" not in (compared / "summary.csv").read_text().splitlines()[0]
    data = xr.load_dataset(compared / "data.nc")
    assert data.config.values.tolist() == ["random", "all, no privacy"]
    assert data.sizes["seed"] == 2
    assert set(QUANTITIES) <= set(data)
    ledger = pd.read_csv(compared / "ledger.csv").query("policy == 'random'")
    assert ledger.participations.sum() == 2 * 10 * 5
    spent = 200 * (1 - np.exp(-0.04 * ledger.participations))
    np.testing.assert_allclose(ledger.spent, spent, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ledger.eps_whole_update, (64 * 10 + 10) * ledger.spent, rtol=1e-5)
    config = config_file.load(compared / "configs" / "random.toml")
    expected = presets.digits_small("random").replace(num_rounds=10, track_regret=False)
    assert config == expected.override({"learning.model": Linear(), "learning.holdout": 0.2})
    about = json.loads((compared / "run.json").read_text())
    assert {"jax", "pause_jax"} <= set(about["versions"])
    assert (compared / "figures" / "accuracy_vs_seconds.png").read_bytes()[:4] == b"\x89PNG"


def test_per_client_adds_client_accuracy_to_default_record(compared):
    assert "worst tenth" in (compared.parents[1] / "printed.txt").read_text()
    with xr.open_dataset(compared / "data.nc") as data:
        assert data.client_accuracy.dims == ("config", "seed", "eval_round", "client")
        assert np.isfinite(data.client_accuracy).all()
        assert "client_loss" in data


def test_report_is_reproduced_from_data_file(compared, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data.nc").write_bytes((compared / "data.nc").read_bytes())
    arguments = ("report", "mine", "--target", "0.3")
    assert run(*arguments) == 0
    assert "Written to mine/report.html" in capsys.readouterr().out
    again = (tmp_path / "mine" / "report.html").read_text()
    assert again == (compared / "report.html").read_text()
    assert run(*arguments, "--against", "all, no privacy") == 0
    words = "Differences from &#39;all, no privacy&#39;"
    assert words in (tmp_path / "mine" / "report.html").read_text()
    for bad, word in (
        ("--against=nobody", "nobody"),
        ("--target=80", "80"),
        ("--load=no.py", "no.py"),
    ):
        assert run(*arguments, bad) == 2
        assert word in capsys.readouterr().err
    assert run("report", "elsewhere") == 2
    assert "elsewhere/data.nc" in capsys.readouterr().err
    (tmp_path / "mine" / "data.nc").write_text("no data")
    assert run("report", "mine") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_unwritable_report_raises_one_line_error(compared, tmp_path, capsys):
    (tmp_path / "data.nc").write_bytes((compared / "data.nc").read_bytes())
    (tmp_path / "report.html").mkdir()
    assert run("report", ".") == 2
    words = " ".join(capsys.readouterr().err.split())
    assert words == "error: report.html: cannot be written (Is a directory)."


def test_run_without_report_packages_succeeds_with_install_hint(monkeypatch, tmp_path, capsys):
    monkeypatch.delitem(sys.modules, "pause_jax.analysis.report.page", raising=False)
    monkeypatch.delattr("pause_jax.analysis.report.page", raising=False)
    monkeypatch.setitem(sys.modules, "altair", None)
    arguments = ("compare", "--policies", "random", *BANDIT, "--no-figures", "--name")
    assert run(*arguments, "without") == 0
    assert "pip install 'pause_jax[report]'" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "results" / "without" / "report.html").exists()
    assert run(*arguments, "asked", "--no-report") == 0
    assert "pip install" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (("compare", "--policies", "random", *BANDIT), "exists"),
        (("sweep", "digits_small", "--max-batch", "0"), "max_batch = 0"),
    ],
)
def test_refused_command_keeps_an_existing_result(compared, monkeypatch, capsys, again, words):
    monkeypatch.chdir(compared.parents[1])
    before = (compared / "data.nc").read_bytes()
    assert run(*again, "--name", "mine", "--no-figures") == 2
    assert words in capsys.readouterr().err
    assert (compared / "data.nc").read_bytes() == before


def test_named_mechanism_keeps_the_budget(monkeypatch):
    found = {}
    monkeypatch.setattr(compare, "execute", lambda configs, *_, **__: found.update(configs))
    names = ("per_coordinate", "gaussian", "projected", "none")
    policies = ("--policies", ",".join(f"random:{name}" for name in names))
    changes = ("--set", "privacy.budget.total_epsilon=7", "--set", "privacy.sensitivity=0.5")
    assert run("compare", *policies, *BANDIT, *changes) == 0
    same, gaussian, projected, none = (config.privacy for config in found.values())
    assert isinstance(same, PerCoordinateLaplace)
    assert same.sensitivity == 0.5
    for mechanism, kind in ((same, PerCoordinateLaplace), (gaussian, GaussianMechanism)):
        assert isinstance(mechanism, kind)
        assert mechanism.budget.total_epsilon == 7
    assert isinstance(projected, Projected)
    assert isinstance(projected.inner, Budgeted)
    assert projected.inner.budget.total_epsilon == 7
    assert none == NoPrivacy()


@pytest.mark.parametrize("command", ["compare", "run", "sweep", "show"])
@pytest.mark.parametrize("base", ["mnist_large", "mine.toml"])
def test_all_commands_accept_policy_and_rounds(monkeypatch, tmp_path, command, base, capsys):
    (tmp_path / "mine.toml").write_text(config_file.dumps(presets.mnist_large("fastest")))
    found = {}
    monkeypatch.setattr(compare, "execute", lambda configs, *_, **__: found.update(configs))
    place = ("--preset", base) if command == "compare" else (base,)
    changes = ("--policy", "random:gaussian", "--rounds", "7", "--set", "num_selected=3")
    assert run(command, *place, *changes) == 0
    if command == "show":
        found["shown"] = config_file.loads(capsys.readouterr().out)
    (config,) = found.values()
    expected = presets.mnist_large("random").replace(num_rounds=7, num_selected=3)
    budget = expected.privacy.budget
    assert config == expected.replace(privacy=GaussianMechanism().with_budget(budget))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("compare", "--policies", "random,fastest"), "configs: 2, seeds: 2, rounds: 12"),
        (("run", "mine.toml"), "configs: 1, seeds: 2, rounds: 12"),
        (
            ("sweep", "mine.toml", "--vary", "reward.gamma=0,1,5"),
            "configs: 3, seeds: 2, rounds: 12",
        ),
        (
            ("tune", "mine.toml", "--vary", "num_selected=1..3", "--objective", "seconds"),
            "configs: 72, seeds: 2, rounds: 12",
        ),
    ],
)
def test_dry_run_prints_estimate_and_writes_nothing(tmp_path, capsys, command, words):
    (tmp_path / "mine.toml").write_text(config_file.dumps(presets.digits_small("random")))
    before = sorted(tmp_path.iterdir())
    assert run(*command, *BANDIT, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(words)
    programs = 3 if command[0] == "tune" else 1
    assert re.fullmatch(rf"programs to compile: {programs}, about \S+ s each", lines[1])
    assert re.fullmatch(r"memory in use, excluding data: about \S+ GiB", lines[2])
    assert re.fullmatch(r"time: about \S+ s, extrapolated from 12 rounds of '.*'", lines[3])
    assert sorted(tmp_path.iterdir()) == before


def test_edited_file_runs_next_to_a_preset(tmp_path, capsys):
    small = ("--set", "policy=random", *BANDIT[:4])
    assert run("show", "digits_small", *small) == 0
    text = capsys.readouterr().out
    (tmp_path / "mine.toml").write_text(text.replace("gamma = 5.0", "gamma = 4.0"))
    arguments = ("mine.toml", "digits_small", *small, "--rounds", "7", "--seeds", "2", *BARE)
    assert run("run", *arguments) == 0
    folder = tmp_path / "results" / "mine"
    data = xr.load_dataset(folder / "data.nc")
    assert data.sizes["round"] == 7
    assert data.config.values.tolist() == ["mine", "digits_small"]
    assert data["reward.gamma"].values.tolist() == [4, 5]
    assert config_file.load(folder / "configs" / "digits_small.toml").policy.name == "random"


@pytest.mark.parametrize(
    ("kind", "listed"),
    [
        ("policies", NAMED),
        ("latencies", [*(model.name for model in LATENCIES), "slowest = 1.0"]),
        ("availability-traces", [trace.name for trace in AVAILABILITY_TRACES]),
        ("datasets", ["digits", "mnist", "fashion_mnist", "cifar10", "linear_regression"]),
    ],
)
def test_choices_are_listed(monkeypatch, capsys, kind, listed):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(kind) == 0
    printed = capsys.readouterr().out
    assert [name for name in listed if name not in printed] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "--policies", "best"), ["policy = 'best'", "pause"]),
        (("compare", "--policies", "pause,pause"), ["pause is listed twice"]),
        (("compare", "--preset", "big"), ["big: must be a config file", "digits_small"]),
        (("compare", "--set", "reward.gamma"), ["PATH=VALUE"]),
        (("compare", "--set", "num_selected=31"), ["num_selected = 31", "<= num_clients = 30"]),
        (("compare", "--target", "80"), ["--target 80", "<= 1"]),
        (("compare", "--per-client"), ["'client_loss' needs held-out samples"]),
        (("compare", "--seeds", "0"), ["--seeds", "greater than or equal to 1"]),
        (("compare", "--preset", "mnist_small", "--data-dir", "nowhere"), ["nowhere", "folder"]),
        (("run", "nowhere.toml"), ["nowhere.toml", "digits_small"]),
        (("compare", "--set", "policy=random"), ["--set policy=random", "--policies"]),
        (("compare", "--seed", "4294967296"), ["--seed", "4294967295"]),
        (("compare", "--load", "leaves.py"), ["--load leaves.py", "SystemExit"]),
        (("run", "caf\udce9.toml", "--name", "x"), ["caf\\udce9' must be a printable string"]),
        (("run", "good.toml", "good.toml"), ["good.toml is listed twice"]),
        (("run", "good.toml", "bad.toml"), ["bad.toml: reward.gamma = -3"]),
        (
            ("run", "good.toml", "bad.toml", "--set", "m=3"),
            ["good.toml: --set m: SimConfig has no"],
        ),
        (("sweep", "bad.toml", "--vary", "reward.alpha=1,2"), ["bad.toml, alpha = 1: reward.ga"]),
        (("tune", "bad.toml", "--vary", "reward.alpha=1..2"), ["bad.toml: reward.gamma = -3"]),
    ],
)
def test_bad_input_prints_one_message_and_leaves_no_files(tmp_path, capsys, arguments, words):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    for name in ("good.toml", "caf\udce9.toml"):
        (tmp_path / name).write_text('learning = "none"\n')
    (tmp_path / "bad.toml").write_text('learning = "none"\n[reward]\ngamma = -3\n')
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for word in words:
        assert word in " ".join(error.split())
    assert not list((tmp_path / "results").glob("*"))


def test_warning_is_printed_once_on_one_line(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "500")

    def warn():
        for text in ("mine [red]", "mine [red]", "other"):
            warnings.warn(text, stacklevel=1)

    # The package has a function of that name, which a plain import would find.
    main = importlib.import_module("pause_jax.cli.main")
    monkeypatch.setattr(main, "program", lambda names: warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        cli.main()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["warning: mine [red]", "warning: other"]


def test_missing_extra_prints_full_install_hint(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("compare") == 2
    assert "pip install 'pause_jax[plot]'" in capsys.readouterr().err


def test_config_file_with_byte_order_mark_is_read(tmp_path):
    (tmp_path / "windows.toml").write_bytes(b"\xef\xbb\xbfnum_rounds = 7\n")
    assert config_file.load(tmp_path / "windows.toml").num_rounds == 7


def test_a_loaded_file_can_import_its_neighbour(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text("NAME = 'imported_its_neighbour'\n")
    (tmp_path / "mine.py").write_text(
        "from beside_it import NAME\n"
        "from pause_jax.policies import Random\n"
        "class Mine(Random):\n"
        "    name = NAME\n"
    )
    options.load_files([tmp_path / "mine.py"])
    assert config_file.loads('policy = "imported_its_neighbour"').policy.name


def closed_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


@pytest.mark.parametrize(
    ("opened", "words"),
    [
        (
            functools.partial(open, "/dev/full", "w"),
            "error: standard output: cannot be written (No space left on device).\n",
        ),
        (closed_pipe, ""),
    ],
    ids=["full device", "closed pipe"],
)
def test_unwritable_output_ends_the_program_in_one_line_at_most(opened, words, monkeypatch, capsys):
    program = [sys.executable, "-m", "pause_jax", "--help"]
    with opened() as out:
        ended = subprocess.run(program, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (1, words)
        monkeypatch.setattr(sys, "stdout", out)
        assert run("policies") == 1
        assert capsys.readouterr().err == words


@pytest.mark.parametrize("stream", ["closed", "ASCII"])
def test_run_succeeds_with_closed_or_ascii_output(stream, monkeypatch, tmp_path):
    printed = io.BytesIO()
    output = None if stream == "closed" else io.TextIOWrapper(printed, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    arguments = ("compare", "--policies", "random", *BANDIT, *BARE)
    assert run(*arguments) == 0
    assert stream == "closed" or b" ? " in printed.getvalue(), "of each mean and its interval"
    sys.stdout.close()
    assert (tmp_path / "results" / "compare-digits_small" / "data.nc").exists()
