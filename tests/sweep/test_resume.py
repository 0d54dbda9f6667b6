"""Processes that are killed at any moment, full disks, signals: nothing is lost, nothing is mixed.

`make soak` does the same at fifty moments (tests/soak.py).
"""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import xarray as xr

from pause_jax import cli
from pause_jax.cli import stopping
from tests.soak import environment, killed, killed_shards, same_bits

pytestmark = pytest.mark.slow

# The page, the ledger and the genie take a process most of its time, and are of no interest here.
RUN = (
    "compare", "--policies", "random,pause", "--set", "learning=none", "--set", "privacy=none",
    "--set", "track_regret=false", "--no-figures", "--no-report",
)  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Compiled programs, so that each process compiles nothing but the first."""
    return environment(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache):
    """The result, and how long a later process runs at least, which need not compile."""
    folder = tmp_path_factory.mktemp("undisturbed") / "kept"
    seconds = killed(folder, cache)
    return xr.load_dataset(f"{folder}.nc"), 0.6 * seconds


def test_a_killed_sweep_goes_on_with_the_same_bits(undisturbed, cache, tmp_path):
    whole, seconds = undisturbed
    moment = random.Random(0).uniform(0.05, 0.95) * seconds
    killed(tmp_path / "kept", cache, moment)
    killed(tmp_path / "kept", cache)
    same_bits(xr.load_dataset(tmp_path / "kept.nc"), whole)
    assert not whole.in_time.sel(config="pause").all(), "no update was ever late"
    assert not [path.name for path in (tmp_path / "kept").iterdir() if path.name[0] == "."]


def test_killed_shards_are_started_again_and_have_the_bits_of_one_process(
    undisturbed, cache, tmp_path
):
    whole, seconds = undisturbed
    merged = killed_shards(tmp_path, cache, random.Random(7), seconds, shards=2, dying=1)
    same_bits(merged.drop_attrs(), whole.drop_attrs())


def program(folder, cache, *arguments, before=()):
    return subprocess.Popen(
        [*before, sys.executable, "-m", "pause_jax", *arguments],
        cwd=folder,
        env=cache,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder, cache, *arguments, before=()):
    """Output, one line of errors, exit status."""
    process = program(folder, cache, *arguments, before=before)
    printed, error = process.communicate(timeout=600)
    assert "Traceback" not in error
    return printed, " ".join(error.split()), process.returncode


@pytest.fixture
def here(monkeypatch, tmp_path, capsys):
    """The same in this process, which is in the test's folder: the next start of the program."""

    def run_here(*arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["pause-jax", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        printed, error = capsys.readouterr()
        return printed, " ".join(error.split()), stop.value.code or 0

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return run_here


LONG = (*RUN, "--rounds", "4000", "--seeds", "4", "--name", "mine")


def test_a_signal_loses_nothing_and_resume_goes_on(cache, here, tmp_path):
    process = program(tmp_path, cache, *LONG)
    kept = tmp_path / "results" / "mine" / "unfinished"
    while process.poll() is None and not (kept / "lock").exists():
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 143
    assert "Traceback" not in error
    if kept.is_dir():  # it had played something
        assert "--resume goes on" in " ".join(error.split())
    printed, error, code = run(tmp_path, cache, *LONG, "--resume")
    assert code == 0
    assert "goes on" in error or "starts anew" in error
    assert "Written to results/mine/" in printed
    assert not kept.exists()
    whole = xr.load_dataset(tmp_path / "results" / "mine" / "data.nc")
    assert whole.attrs["interrupted"] == "no"
    assert whole.attrs["command"].startswith("pause-jax compare")
    assert "--resume" not in whole.attrs["command"]
    printed, error, code = here(*LONG, "--resume")
    assert (code, "mine is finished: nothing is left to play" in error) == (0, True)
    assert "fairness" in printed


# A limit on the size of files, in KiB: what a full disk says, without being root.
SMALL_DISK = ["bash", "-c", 'trap "" XFSZ; ulimit -f 60; exec "$@"', "-"]


DISK = (*RUN, "--rounds", "200", "--seeds", "3", "--name", "mine")


@pytest.fixture(scope="module")
def on_a_full_disk(cache, tmp_path_factory):
    """A folder in which DISK ran on a full disk, and what it said."""
    folder = tmp_path_factory.mktemp("full")
    return folder, run(folder, cache, *DISK, before=SMALL_DISK)


def test_on_a_full_disk_the_table_is_printed_and_one_line_says_why(on_a_full_disk, here, tmp_path):
    folder, (printed, error, code) = on_a_full_disk
    assert code == 1
    assert "fairness" in printed
    assert "the result cannot be written (File too large)" in error
    assert "make room, and --resume writes the result" in error
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    printed, error, code = here(*DISK, "--resume")
    assert (code, "Written to" in printed) == (0, True)


def test_where_not_even_runs_can_be_stored_the_way_on_is_named(cache, tmp_path):
    arguments = (*RUN, "--rounds", "2000", "--seeds", "8", "--name", "mine")
    _, error, code = run(tmp_path, cache, *arguments, before=SMALL_DISK)
    assert code == 1
    assert "--resume runs what could not be stored" in " ".join(error.split())


def test_a_changed_command_is_named_and_not_mixed_in(on_a_full_disk, here, tmp_path):
    shutil.copytree(on_a_full_disk[0], tmp_path, dirs_exist_ok=True)
    _, error, code = here(*DISK, "--set", "reward.gamma=3", "--resume")
    assert code == 2
    assert "reward.gamma of 'random' was" in error
    _, error, code = here(*DISK)
    assert (code, "It is unfinished: --resume goes on with it." in error) == (2, True)


def test_starts_at_the_same_moment_have_folders_of_their_own(cache, tmp_path):
    arguments = (*RUN, "--rounds", "20", "--seeds", "1")
    processes = [program(tmp_path, cache, *arguments) for _ in range(2)]
    for process in processes:
        _, error = process.communicate(timeout=600)
        assert process.returncode == 0, error[-2000:]
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names == {f"compare-digits_small{end}" for end in ("", "-2")}


def test_force_leaves_nothing_of_the_result_before(here, tmp_path):
    first = ("--rounds", "20", "--seeds", "1", "--name", "mine")
    assert here(*RUN, *first)[2] == 0
    mine = tmp_path / "results" / "mine"
    (mine / "notes.txt").write_text("of the user")
    other = ("compare", "--policies", "fastest", *RUN[3:])
    assert here(*other, *first, "--force")[2] == 0
    assert [path.name for path in (mine / "configs").iterdir()] == ["fastest.toml"]
    assert (mine / "notes.txt").exists()
    (mine / "data.nc").unlink()
    (mine / "data.nc").mkdir()
    _, error, code = here(*other, *first, "--force")
    assert (code, "data.nc is a folder: a file must go there" in error) == (2, True)


SWEEP = ("sweep", "digits_small", "--set", "learning=none", "--set", "num_rounds=20",
         "--set", "track_regret=false", "--vary", "reward.gamma=0,5")  # fmt: skip


def test_shards_from_the_command_line(here, tmp_path):
    shard = (*SWEEP, "--store", "kept", "--shard")
    printed, _, code = here(*shard, "1/3")
    assert code == 0
    assert "shard 1/3: ran 6 runs in 6 chunks; all are finished" in printed
    sorted((tmp_path / "kept").glob("chunk-*"))[0].unlink()
    _, error, code = here("merge", "kept")
    assert code == 2
    assert "Start one of its shards again, as in: pause-jax sweep digits_small" in error
    assert not (tmp_path / "results").exists()
    printed, _, code = here(*shard, "2/3")
    assert (code, "shard 2/3: ran 1 runs in 1 chunks" in printed) == (0, True)
    printed, _, code = here("merge", "kept", "--no-figures")
    assert (code, "Written to results/kept/" in printed) == (0, True)
    assert json.loads((tmp_path / "results/kept/run.json").read_text())["interrupted"] == "no"
    for wrong, words in ((("--shard", "4/3"), "shard 4/3"), (("--shard", "a"), "NUMBER/SHARDS")):
        _, error, code = here(*SWEEP, *wrong, "--store", "kept")
        assert (code, words in error) == (2, True)
    _, error, code = here(*SWEEP, "--shard", "1/3")
    assert (code, "--shard: needs --store" in error) == (2, True)


def test_the_job_array_of_slurm_runs_a_shard_and_queues_it_again(cache, here, tmp_path):
    options = ("--shards", "3", "--time", "2:00:00", "--store", "kept", "--sbatch", "--mem=4G")
    script, _, code = here("slurm", *SWEEP[1:], *options)
    assert code == 0
    for line in ("--array=1-3", "--time=2:00:00", "--requeue", "--signal=B:TERM@120", "--mem=4G"):
        assert f"#SBATCH {line}\n" in script
    (tmp_path / "job.sh").write_text(script)
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@" > requeued\n')
    (tmp_path / "scontrol").chmod(0o755)
    task = {
        **cache,
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_ARRAY_JOB_ID": "77",
        "PATH": f"{tmp_path}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=task, check=True, capture_output=True)
    assert list((tmp_path / "kept").glob("chunk-*.npz"))
    assert not (tmp_path / "requeued").exists()
    # Of a long one that is told to stop.
    (tmp_path / "job.sh").write_text(
        script.replace("num_rounds=20", "num_rounds=100000").replace("kept", "long")
    )
    process = subprocess.Popen(
        ["bash", "job.sh"], cwd=tmp_path, env=task, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    while process.poll() is None and not list((tmp_path / "long").glob("lease-*")):
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 143
    assert (tmp_path / "requeued").read_text() == "requeue 77_2\n"
    process.communicate()


def test_the_first_signal_stops_and_what_is_ignored_stays_so():
    heard = {number: signal.getsignal(number) for number in stopping.SIGNALS}

    def both():
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with pytest.raises(stopping.Stopped) as stopped, stopping.stoppable():
            both()
        assert stopping.status_of(stopped.value) == 143
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, heard[signal.SIGHUP])
    assert {number: signal.getsignal(number) for number in heard} == heard
    assert stopping.status_of(KeyboardInterrupt()) == 130
    assert stopping.status_of(RuntimeError()) == 1
