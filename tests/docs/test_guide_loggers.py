"""The guide to loggers runs as it stands there, with a service that is not asked."""

import pathlib
import re
import sys
import types

import pytest

from tests.support.results import made

pytestmark = pytest.mark.slow

GUIDE = (pathlib.Path(__file__).parents[2] / "docs" / "guides" / "loggers.md").read_text("utf-8")


class Run:
    """What wandb.init returns, as far as the guide needs it."""

    def __init__(self, **options):
        self.options, self.logged, self.finished = options, {}, False

    def define_metric(self, name, step_metric):
        self.axis = name, step_metric

    def log(self, values, step):
        assert step > max(self.logged, default=0)
        self.logged[step] = values

    def finish(self):
        self.finished = True


@pytest.fixture
def runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    opened: list[Run] = []

    def init(**options):
        opened.append(Run(**options))
        return opened[-1]

    fake = types.ModuleType("wandb")
    monkeypatch.setattr(fake, "init", init, raising=False)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return opened


def test_its_python_runs(runs, tmp_path):
    folder = tmp_path / "results" / "compare-digits_small"
    folder.mkdir(parents=True)
    made({"pause": None, "random": None}, seeds=2).to_netcdf(folder / "data.nc")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        exec(block, names)
    assert [run.options["name"] for run in runs] == [
        f"{config}, seed {seed}" for config in ("pause", "random") for seed in (0, 1)
    ]
    assert all(run.finished and list(run.logged) == list(range(1, 21)) for run in runs)
    assert {"seconds", "latency", "test_accuracy"} <= set(runs[0].logged[5])
    assert "What I tried" in (tmp_path / "mine.html").read_text("utf-8")
