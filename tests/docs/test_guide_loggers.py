"""The guide to loggers runs as it stands there, with a service that is not asked."""

import sys
from unittest.mock import MagicMock

import pytest

from tests.support.pages import play
from tests.support.results import made

pytestmark = pytest.mark.slow


def test_its_python_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    wandb = MagicMock()
    runs = wandb.init.side_effect = [MagicMock() for _ in range(4)]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    folder = tmp_path / "results" / "compare-digits_small"
    folder.mkdir(parents=True)
    made({"pause": None, "random": None}, seeds=2).to_netcdf(folder / "data.nc")
    play("docs/guides/loggers.md")
    assert [call.kwargs["name"] for call in wandb.init.call_args_list] == [
        f"{config}, seed {seed}" for config in ("pause", "random") for seed in (0, 1)
    ]
    for run in runs:
        run.finish.assert_called_once()
        steps = [call.kwargs["step"] for call in run.log.call_args_list]
        assert steps == list(range(1, 21))
    values = runs[0].log.call_args_list[4].args[0]
    assert {"seconds", "latency", "test_accuracy"} <= set(values)
    assert "What I tried" in (tmp_path / "mine.html").read_text("utf-8")
