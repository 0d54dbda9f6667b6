"""The code of guides runs as it stands there, and their commands set what they say."""

import re
import shlex
import sys
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest

from pause_jax import presets
from pause_jax.cli.settings import changed
from pause_jax.config import validate
from pause_jax.privacy import Tiers
from tests.support.pages import ROOT, blocks, play
from tests.support.results import made

# A policy that takes less time to compile than PAUSE.
RANDOM = "from pause_jax.policies import Random\n"


@pytest.mark.nightly
@pytest.mark.parametrize(("guide", "number"), [("own_data_and_model", 6), ("your_fleet", 6)])
def test_data_and_fleet_run_from_first_to_last(guide, number, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    page = f"docs/guides/{guide}.md"
    assert len(blocks(page)) == number
    smaller = {
        "base = SimConfig(": f"{RANDOM}base = SimConfig(policy=Random(), track_regret=False, "
    }
    if guide == "own_data_and_model":
        smaller['("pause", "random")'] = '("random",)'
    play(page, smaller=smaller)
    printed = capsys.readouterr().out.strip().splitlines()
    if guide == "own_data_and_model":
        assert all(re.match(r"(y|y_train|num_clients)\b", line) for line in printed[-4:])


@pytest.mark.nightly
def test_fine_tuning_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    smaller = {"num_rounds=40,": "num_rounds=9, track_regret=False, policy=Random(),"}
    smaller["base ="] = f"{RANDOM}base ="
    play("docs/guides/fine_tuning.md", smaller=smaller)
    sizes = [int(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    kernels = ((64, 32), (32, 16), (16, 10))
    low_rank = sum(2 * (height + width) for height, width in kernels)
    assert sizes == [sum((height + 1) * width for height, width in kernels), 17 * 10, low_rank]


@pytest.mark.nightly
def test_local_work_runs(capsys):
    smaller = {'"learning.max_steps": 60}': '"learning.max_steps": 60, "num_rounds": 4}'}
    names = play("docs/guides/local_work.md", smaller=smaller)
    assert list(names["result"].config.values) == ["0.5 epochs", "1 epochs", "3 epochs"]
    assert "<xarray.DataArray" in capsys.readouterr().out


@pytest.mark.nightly
def test_budgets_run(capsys):
    smaller = {"num_rounds=100,": "num_rounds=100, track_regret=False,"}
    play("docs/guides/budgets.md", smaller=smaller)
    assert "50." in capsys.readouterr().out


@pytest.mark.nightly
def test_who_is_left_behind_runs(capsys):
    smaller = {'"learning.holdout": 0.2}': '"learning.holdout": 0.2, "num_rounds": 4}'}
    names = play("docs/guides/who_is_left_behind.md", smaller=smaller)
    assert names["last"].sizes == {"config": 2, "seed": 3, "client": 30}
    assert capsys.readouterr().out.count("<xarray.DataArray") == 2


@pytest.mark.nightly
def test_tables_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    few = ".replace(num_rounds=10, eval_every=5, track_regret=False).override("
    few += '{"learning.optimizer": "sgd", "learning.max_steps": 1})'
    smaller = {"digits_small(name)": f"digits_small(name){few}", "key(0), 5)": "key(0), 2)"}
    smaller |= {'("pause", "random", "fastest")': '("random", "fastest")'}
    names = play("docs/guides/tables.md", smaller=smaller)
    printed = capsys.readouterr().out
    accuracy = names["accuracy"].sel(config="random").mean().item()
    assert f"random & ${accuracy:.1f} \\pm " in printed
    assert re.search(r"fastest: [-+]\d+\.\d points \[", printed)
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")


def test_the_command_of_budgets_sets_a_law_of_two_tiers():
    text = (ROOT / "docs" / "guides" / "budgets.md").read_text("utf-8")
    words = shlex.split(text[text.index("pause-jax compare") :].partition("```")[0])
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    config = changed(presets.digits_small(), settings)
    validate(config)
    law = getattr(config.privacy.budget, "law", None)
    assert law == Tiers(values=(0.1, 1.0), shares=(0.5, 0.5))


@pytest.mark.nightly
@pytest.mark.slow
def test_loggers_run_with_services_that_are_not_asked(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    wandb, tensorboard = MagicMock(), MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "tensorboardX", tensorboard)
    folder = tmp_path / "results" / "compare-digits_small"
    folder.mkdir(parents=True)
    result = made({"pause": None, "random": None}, seeds=2)
    result["played"][0, 0, 15:] = False  # ended early
    result["own"] = (("config", "seed", "round"), np.ones((2, 2, 20)))
    result.to_netcdf(folder / "data.nc")
    play("docs/guides/loggers.md")
    run = result.sel(config="pause", seed=0)
    table = pd.read_csv("pause.csv", index_col="round")
    assert table.index.tolist() == list(range(1, 16))
    for name in ("clock", "latency", "own"):
        np.testing.assert_allclose(table[name], run[name][:15])
    accuracy = table.test_accuracy.dropna()
    assert accuracy.index.tolist() == [5, 10, 15]
    np.testing.assert_allclose(accuracy, run.test_accuracy[:3])
    writer = tensorboard.SummaryWriter.return_value.__enter__.return_value
    assert len(writer.add_scalar.call_args_list) == table.count().sum()
    for call in writer.add_scalar.call_args_list:
        name, value, number = call.args
        assert value == pytest.approx(table[name][number])
        assert call.kwargs["walltime"] == pytest.approx(table.clock[number])
    calls = wandb.init.return_value.__enter__.return_value.log.call_args_list
    assert [call.kwargs["step"] for call in calls] == list(range(1, 16))
    assert calls[4].args[0] == pytest.approx(table.loc[5].to_dict())
    assert "test_accuracy" not in calls[5].args[0]
    assert "What I tried" in (tmp_path / "mine.html").read_text("utf-8")
