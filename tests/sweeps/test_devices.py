"""Eight devices, and two processes, give what one device and one process give."""

import os
import pathlib
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from pause_jax import ConfigError, cli
from pause_jax.sweeps import distributed

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "support"


def environment():
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }


def test_eight_devices_give_what_one_gives():
    ran = subprocess.run(
        [sys.executable, str(PROGRAMS / "devices.py")],
        env=environment(), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert ran.stdout.strip() == "ok", ran.stderr[-3000:]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


SWEEP = (
    "sweep", "digits_small", "--vary", "reward.gamma=0,5", "--vary", "reward.alpha=1,2",
    "--seeds", "3", "--max-batch", "4", "--set", "num_rounds=4", "--set", "privacy=none",
    "--set", "track_regret=false", "--name", "mine", "--no-figures", "--no-report",
)  # fmt: skip
TRAINED = ("--set", "learning.model=linear", "--set", "eval_every=2")
BANDIT = ("--set", "learning=none")


def command(folder, *arguments, program=("-m", "pause_jax.cli")) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, *SWEEP, *arguments],
        env=environment(), cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def pair(folder, *arguments) -> list[subprocess.Popen[str]]:
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2")
    folders = [folder / "first", folder / "second"]
    for each in folders:
        each.mkdir()
    return [
        command(each, *where, "--process-id", str(i), *arguments) for i, each in enumerate(folders)
    ]


def test_two_processes_give_what_one_gives(tmp_path, monkeypatch):
    alone = tmp_path / "alone"
    alone.mkdir()
    monkeypatch.chdir(alone)
    monkeypatch.setattr(sys, "argv", ["pause-jax", *SWEEP, *TRAINED])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    processes = pair(tmp_path, *TRAINED)
    outputs = [process.communicate(timeout=600) for process in processes]
    for process, (_, error) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, error[-3000:]
    assert "gamma" in outputs[0][0]
    assert "gamma" not in outputs[1][0], "only the first process prints"
    assert not (tmp_path / "second" / "results").exists()
    one, two = (
        xr.load_dataset(folder / "results" / "mine" / "data.nc")
        for folder in (alone, tmp_path / "first")
    )
    assert one.sizes["config"] == 4
    for name in ("clients", "counts"):
        np.testing.assert_array_equal(two[name], one[name])
    xr.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-4)


def test_processes_with_different_commands_refuse_to_mix(tmp_path):
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2")
    processes = [
        command(tmp_path, *where, *BANDIT, "--process-id", str(i), "--seed", str(i))
        for i in range(2)
    ]
    outputs = [process.communicate(timeout=600) for process in processes]
    for process, (printed, error) in zip(processes, outputs, strict=True):
        assert process.returncode == 2, error[-2000:]
        assert "were started with different commands" in " ".join(error.split())
        assert "Written" not in printed
    assert not list((tmp_path / "results").glob("*"))


def test_a_process_that_dies_ends_the_others_and_finished_chunks_are_kept(tmp_path):
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2", *BANDIT)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    dying = command(folders[1], *where, "--process-id", "1", program=[str(PROGRAMS / "dying.py")])
    left = command(folders[0], *where, "--process-id", "0")
    _, error = left.communicate(timeout=600)
    dying.communicate(timeout=600)
    assert dying.returncode == -signal.SIGKILL
    assert left.returncode == 1
    assert "another process died" in error.replace("\n", " ")
    assert "Traceback" not in error
    kept = xr.load_dataset(folders[0] / "results" / "mine-process0" / "data.nc")
    # Of three chunks of four runs two were gathered: two configs of three seeds, and two runs.
    assert kept.sizes["config"] == 2
    assert kept.sizes["seed"] == 3
    assert kept.clock.notnull().all()
    assert not (folders[0] / "results" / "mine").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("10.0.0.1:1234", 2, None), "give all three"),
        ((None, 2, 0), "give all three"),
        (("10.0.0.1", 2, 0), "HOST:PORT"),
        (("10.0.0.1:1234", 0, 0), "num_processes = 0"),
        (("10.0.0.1:1234", 2, 2), "process_id = 2"),
    ],
)
def test_bad_addresses_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        distributed.start(*arguments)
