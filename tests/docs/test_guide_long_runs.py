"""The guide to long runs: its code, its commands and its cluster of Kubernetes."""

import pathlib
import re
import shlex
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import xarray as xr
import yaml

from pause_jax import config_file, presets
from pause_jax.cli import compare
from tests.support.command import run

pytestmark = pytest.mark.slow

GUIDES = pathlib.Path(__file__).parents[2] / "docs" / "guides"
GUIDE = (GUIDES / "long_runs.md").read_text()


class Cluster:
    """A cluster and its client that stand in for Dask's: tests/sweeps/test_workers.py has those."""

    def __init__(self, *_, **options):
        self.options = options

    def adapt(self, minimum, maximum):
        assert 0 < minimum <= maximum

    def get_executor(self):
        return ThreadPoolExecutor(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class AutoExecutor(ThreadPoolExecutor):
    """One that stands in for submitit's."""

    def __init__(self, folder):
        super().__init__(1)

    def update_parameters(self, **options):
        assert options["timeout_min"] > 0


@pytest.mark.nightly
def test_its_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    modules: dict[str, dict[str, type]] = {
        "distributed": {"LocalCluster": Cluster, "Client": Cluster},
        "dask_jobqueue": {"SLURMCluster": Cluster},
        "submitit": {"AutoExecutor": AutoExecutor},
    }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    first, *with_executors = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(with_executors) == 3
    names = {"__name__": "__main__"}
    for _ in range(2):
        exec(first, names)
    assert capsys.readouterr().out.startswith("no ")
    alone = names["result"]
    for code in with_executors:
        for folder in ("night", "kept"):
            for chunk in (tmp_path / folder).glob("chunk-*"):
                chunk.unlink()
        exec(code, names)
        assert any(tmp_path.glob("*/chunk-*.npz"))
        xr.testing.assert_allclose(names["result"], alone)


def test_its_commands_are_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = presets.digits_small("random").replace(learning=None, num_rounds=4)
    (tmp_path / "mine.toml").write_text(config_file.dumps(config))
    executed = []
    monkeypatch.setattr(compare, "execute", lambda *args, **_: executed.append(args))
    lines = re.findall(r"^pause-jax sweep .*$", GUIDE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        assert run(*shlex.split(line.partition("#")[0])[1:]) == 0
    schedulers = [request.dask for _, request in executed]
    assert schedulers == ["local:4", "10.0.0.1:8786", "127.0.0.1:8786"]
    configs, request = executed[-1]
    assert (len(configs), request.seeds, str(request.store)) == (4, 64, "kept")


def test_its_pods_are_workers_of_the_scheduler_that_the_command_names():
    cluster = yaml.safe_load((GUIDES / "kubernetes.yaml").read_text())
    assert cluster["kind"] == "DaskCluster"
    (service,) = [
        port
        for port in cluster["spec"]["scheduler"]["service"]["ports"]
        if port["name"] == "tcp-comm"
    ]
    assert f"service/{cluster['metadata']['name']}-scheduler {service['port']}" in GUIDE
    (worker,) = cluster["spec"]["worker"]["spec"]["containers"]
    assert worker["args"][0] == "dask-worker"
