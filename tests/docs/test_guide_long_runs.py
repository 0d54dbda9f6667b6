"""The guide to long runs: its code, its commands and its job of Kubernetes."""

import contextlib
import pathlib
import re
import shlex
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import xarray as xr
import yaml

from pause_jax import cli, config_file, presets
from pause_jax.cli import sweep as sweep_command

pytestmark = pytest.mark.slow

GUIDES = pathlib.Path(__file__).parents[2] / "docs" / "guides"
GUIDE = (GUIDES / "long_runs.md").read_text()


def test_its_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, on_dask = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    names = {"__name__": "__main__"}
    for _ in range(2):
        exec(first, names)
    assert capsys.readouterr().out.startswith("no ")
    chunks = list((tmp_path / "night").glob("chunk-*.npz"))
    assert chunks
    chunks[0].unlink()
    # Threads in place of a cluster, which tests/sweeps/test_workers.py has.
    stand_in = types.ModuleType("distributed")
    vars(stand_in).update(LocalCluster=lambda **_: contextlib.nullcontext(), Client=Client)
    monkeypatch.setitem(sys.modules, "distributed", stand_in)
    before = names["result"]
    exec(on_dask, names)
    xr.testing.assert_identical(names["result"], before)
    assert chunks[0].exists()


class Client:
    def __init__(self, cluster):
        self.get_executor = lambda: ThreadPoolExecutor(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_its_commands_are_understood(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = presets.digits_small("random").replace(learning=None, num_rounds=4)
    (tmp_path / "mine.toml").write_text(config_file.dumps(config))
    asked = []
    monkeypatch.setattr(sweep_command, "execute_shard", lambda *args: asked.append(args))
    executed, texts = [], []

    @contextlib.contextmanager
    def executor(text):
        texts.append(text)
        yield "an executor"

    monkeypatch.setattr(sweep_command, "dask_executor", executor)
    monkeypatch.setattr(sweep_command, "execute", lambda *args, **_: executed.append(args))
    lines = re.findall(r"^pause-jax (?:sweep|slurm) .*$", GUIDE, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        words = shlex.split(line.partition(" > ")[0].partition("#")[0])
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
    ((configs, request, shard),) = asked
    assert (len(configs), request.seeds, str(request.store), shard) == (4, 64, "kept", (3, 16))
    assert "--array=1-16" in capsys.readouterr().out
    assert texts == ["local:4", "10.0.0.1:8786"]
    assert [request.executor for _, request in executed] == ["an executor"] * 2


def test_a_pod_runs_the_shard_of_its_index(tmp_path):
    job = yaml.safe_load((GUIDES / "kubernetes.yaml").read_text())
    assert (job["kind"], job["spec"]["completionMode"]) == ("Job", "Indexed")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    program = tmp_path / "pause-jax"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    printed = subprocess.run(
        container["command"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "JOB_COMPLETION_INDEX": "15"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    number = job["spec"]["completions"]
    assert printed[printed.index("--shard") + 1] == f"16/{number}"
