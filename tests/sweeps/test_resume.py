"""Processes that are killed at any moment, full disks, signals: nothing is lost, nothing is mixed.

`make soak` does the same at fifty moments (tests/soak.py).
"""

import json
import logging
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import jax
import pytest
import xarray as xr

from pause_jax import cli, merge, run_shard, sweep
from pause_jax.cli import result_folder, stopping
from tests.soak import begun, ended, environment, killed, same_bits
from tests.support.killed import CONFIGS, KEYS, MAX_BATCH

pytestmark = pytest.mark.slow

# The page, the ledger and the genie take a process most of its time, and are of no interest here.
# One program serves all tests of the command line; sweeps of several policies: test_store.py.
SIMPLE = (
    "--set", "learning=none", "--set", "privacy=none", "--set", "track_regret=false",
    "--set", "latency=lognormal",
)  # fmt: skip
RUN = ("compare", "--policies", "random", *SIMPLE, "--no-figures", "--no-report")


SETTINGS = {"max_batch": MAX_BATCH, "progress": False}


@pytest.fixture(scope="module")
def cache():
    """The environment of processes that share the tests' compiled programs."""
    return environment(pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"]))


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(0), KEYS)


@pytest.fixture(scope="module")
def undisturbed(keys):
    """The result, and how long a process that need not compile runs at least."""
    start = time.perf_counter()
    whole = sweep(CONFIGS, keys, **SETTINGS)
    return whole, 0.6 * (time.perf_counter() - start)


def test_a_killed_sweep_goes_on_with_the_same_bits(undisturbed, keys, cache, tmp_path):
    whole, seconds = undisturbed
    killed(tmp_path, cache, random.Random(0).uniform(0.05, 0.95) * seconds)
    same_bits(sweep(CONFIGS, keys, store=tmp_path, **SETTINGS), whole)
    assert not whole.in_time.sel(config="pause").all(), "no update was ever late"
    assert not [path.name for path in tmp_path.iterdir() if path.name[0] == "."]


def test_killed_shards_are_started_again_and_have_the_bits_of_one_process(
    undisturbed, keys, cache, tmp_path
):
    whole, seconds = undisturbed
    moment = random.Random(7).uniform(0.05, 0.5) * seconds
    dying = begun(tmp_path, cache, moment, "1/2")
    # A dead child counts as alive until it is waited for.
    waiting = threading.Thread(target=dying.wait)
    waiting.start()
    while waiting.is_alive() and not list(tmp_path.glob("lease-*")):
        time.sleep(0.01)
    run_shard(CONFIGS, keys, (2, 2), store=tmp_path, **SETTINGS)
    waiting.join()
    ended(dying)
    run_shard(CONFIGS, keys, (1, 2), store=tmp_path, **SETTINGS)
    same_bits(merge(tmp_path).drop_attrs(), whole.drop_attrs())


def program(folder, cache, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "pause_jax", *arguments],
        cwd=folder,
        env=cache,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def here(monkeypatch, tmp_path, capsys):
    """Output, one line of errors, exit status of the program in this process, which is in the
    test's folder.
    """

    def run_here(*arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["pause-jax", *arguments])
        with monkeypatch.context() as patch:
            patch.setattr(logging.getLogger(), "handlers", [])  # the program sets up its own
            with pytest.raises(SystemExit) as stop:
                cli.main()
        printed, error = capsys.readouterr()
        return printed, " ".join(error.split()), stop.value.code or 0

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return run_here


LONG = (*RUN, "--rounds", "4000", "--seeds", "8")
SHORT = (*RUN, "--rounds", "20", "--seeds", "1")


def test_a_signal_loses_nothing_and_resume_goes_on(cache, here, tmp_path):
    """And a start in the meantime takes a folder of its own."""
    first, second = (tmp_path / "results" / f"compare-digits_small{end}" for end in ("", "-2"))
    process = program(tmp_path, cache, *LONG)
    while process.poll() is None and not list(first.glob("unfinished/chunk-*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    assert here(*SHORT)[2] == 0
    assert (second / "data.nc").exists()
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 143
    assert "Traceback" not in error
    assert "--resume goes on" in " ".join(error.split())
    printed, error, code = here(*LONG, "--resume")
    assert code == 0
    assert re.search(r"of \d chunks are finished", error)
    assert "Written to results/compare-digits_small/" in printed
    assert not (first / "unfinished").exists()
    whole = xr.load_dataset(first / "data.nc")
    assert whole.attrs["interrupted"] == "no"
    assert whole.attrs["command"].startswith("pause-jax compare")
    assert "--resume" not in whole.attrs["command"]
    printed, error, code = here(*LONG, "--resume")
    assert (code, f"{first.name} is finished: nothing is left to play" in error) == (0, True)
    assert "fairness" in printed


def test_starts_at_the_same_moment_have_folders_of_their_own(monkeypatch, tmp_path):
    make = pathlib.Path.mkdir

    def just_after_another(path, *arguments, **options):
        if path.name == "mine":
            os.makedirs(path, exist_ok=True)
        make(path, *arguments, **options)

    monkeypatch.setattr(pathlib.Path, "mkdir", just_after_another)
    folder = result_folder.reserve(tmp_path, "mine", explicit=False, force=False)
    assert folder.name == "mine-2"


DISK = (*RUN, "--rounds", "200", "--seeds", "3", "--name", "mine")


def on_a_small_disk(here, kib):
    """What DISK says where no file is larger, and its result elsewhere."""
    assert here(*DISK, "--out", "elsewhere")[2] == 0  # its compiled programs are kept, too
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kib * 1024, limits[1]))
    try:
        said = here(*DISK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return said, xr.load_dataset("elsewhere/mine/data.nc")


def test_on_a_full_disk_the_table_is_printed_and_one_line_says_why(here):
    (printed, error, code), whole = on_a_small_disk(here, kib=60)
    assert code == 1
    assert "fairness" in printed
    assert "the result cannot be written (File too large)" in error
    assert "make room, and --resume writes the result" in error
    # A changed command is named and not mixed in.
    _, error, code = here(*DISK, "--set", "reward.gamma=3", "--resume")
    assert code == 2
    assert "reward.gamma of 'random' was" in error
    _, error, code = here(*DISK)
    assert (code, "It is unfinished: --resume goes on with it." in error) == (2, True)
    printed, error, code = here(*DISK, "--resume")
    assert (code, "Written to" in printed) == (0, True)
    found = xr.load_dataset("results/mine/data.nc")
    xr.testing.assert_equal(found, whole)


def test_where_not_even_runs_can_be_stored_the_way_on_is_named(here):
    (_, error, code), _ = on_a_small_disk(here, kib=20)
    assert code == 1
    assert "--resume runs what could not be stored" in error


def test_force_leaves_nothing_of_the_result_before(here, tmp_path):
    assert here(*SHORT, "--name", "mine")[2] == 0
    mine = tmp_path / "results" / "mine"
    (mine / "notes.txt").write_text("of the user")
    other = ("compare", "--policies", "fastest", *SHORT[3:], "--name", "mine", "--force")
    assert here(*other)[2] == 0
    assert [path.name for path in (mine / "configs").iterdir()] == ["fastest.toml"]
    assert (mine / "notes.txt").exists()
    (mine / "data.nc").unlink()
    (mine / "data.nc").mkdir()
    _, error, code = here(*other)
    assert (code, "data.nc is a folder: a file must go there" in error) == (2, True)


SWEEP = ("sweep", "digits_small", "--set", "policy=random", *SIMPLE, "--set", "num_rounds=20",
         "--vary", "reward.gamma=0,5")  # fmt: skip


def test_shards_from_the_command_line(here, tmp_path):
    shard = (*SWEEP, "--store", "kept", "--shard")
    printed, _, code = here(*shard, "1/3")
    assert code == 0
    assert re.search(r"shard 1/3: ran 6 runs in \d chunks; all are finished", printed)
    sorted((tmp_path / "kept").glob("chunk-*"))[0].unlink()
    _, error, code = here("merge", "kept")
    assert code == 2
    assert "Start one of its shards again, as in: pause-jax sweep digits_small" in error
    assert not (tmp_path / "results").exists()
    printed, _, code = here(*shard, "2/3")
    assert code == 0
    assert re.search(r"shard 2/3: ran \d runs in 1 chunks", printed)
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
    # What it starts is written down, and run here.
    (tmp_path / "job.sh").write_text(re.sub(r"\S*pause-jax sweep", "./start sweep", script))
    for name, file in (("scontrol", "requeued"), ("start", "started")):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {file}\n')
        (tmp_path / name).chmod(0o755)
    task = {
        **cache,
        "SLURM_ARRAY_TASK_ID": "2",
        "SLURM_ARRAY_JOB_ID": "77",
        "PATH": f"{tmp_path}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=task, check=True, capture_output=True)
    assert here(*(tmp_path / "started").read_text().splitlines())[2] == 0
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
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 143
    assert (tmp_path / "requeued").read_text() == "requeue\n77_2\n"
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
