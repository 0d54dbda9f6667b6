"""Processes that are killed at any moment, full disks, signals: nothing is lost, nothing is mixed.

`make soak` does the same at fifty moments (tools/soak.py).
"""

import contextlib
import logging
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import time

import jax
import pytest
import xarray as xr

from pause_jax import sweep
from pause_jax.base.stopping import check_stop
from pause_jax.cli import output, result_folder
from tests.support.command import run
from tests.support.killed import CONFIGS, KEYS, MAX_BATCH, environment, run_killed, same_bits

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


def test_killed_sweep_resumes_with_the_same_bits(undisturbed, keys, cache, tmp_path):
    whole, seconds = undisturbed
    run_killed(tmp_path, cache, random.Random(0).uniform(0.05, 0.95) * seconds)
    same_bits(sweep(CONFIGS, keys, store=tmp_path, **SETTINGS), whole)
    assert not whole.in_time.sel(config="pause").all(), "no update was ever late"
    assert not list(tmp_path.glob("*.part"))


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
        with monkeypatch.context() as patch:
            patch.setattr(logging.getLogger(), "handlers", [])  # the program sets up its own
            status = run(*arguments)
        printed, error = capsys.readouterr()
        return printed, " ".join(error.split()), status

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return run_here


LONG = (*RUN, "--rounds", "4000", "--seeds", "8")
SHORT = (*RUN, "--rounds", "20", "--seeds", "1")


def test_signal_loses_nothing_and_resume_continues(cache, here, tmp_path):
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
    assert_stopped(process, error, signal.SIGTERM, "to continue")
    printed, error, code = here(*LONG, "--resume")
    assert code == 0
    assert re.search(r"of \d chunks finished", error)
    assert "Written to results/compare-digits_small/" in printed
    assert not (first / "unfinished").exists()
    whole = xr.load_dataset(first / "data.nc")
    assert whole.attrs["interrupted"] == "no"
    assert whole.attrs["command"].startswith("pause-jax compare")
    assert "--resume" not in whole.attrs["command"]
    printed, error, code = here(*LONG, "--resume")
    assert (code, f"{first.name} is finished. Nothing left to run." in error) == (0, True)
    assert "fairness" in printed


def assert_stopped(process, error, number, advice):
    """One line tells how far the command came, and how to go on."""
    assert process.returncode == 128 + number
    line = rf"stopped after \d of 8 runs, 0 of 1 configs \({number.name}\)\. .*{advice}\."
    assert re.search(line, " ".join(error.split()))
    assert "Traceback" not in error


def test_resume_with_a_store_continues_in_the_same_folder(cache, here, tmp_path):
    two = (
        *RUN, "--policies", "random,fastest", "--rounds", "4000", "--seeds", "1", "--store", "kept",
    )  # fmt: skip
    first = tmp_path / "results" / "compare-digits_small"
    process = program(tmp_path, cache, *two)
    while process.poll() is None and not list((tmp_path / "kept").glob("chunk-*.npz")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=600)
    assert first.is_dir()
    printed, error, code = here(*two, "--resume")
    assert (code, "Written to results/compare-digits_small/" in printed) == (0, True)
    assert "1 of 2 chunks finished" in error
    assert "Starting a new run" not in error
    assert xr.load_dataset(first / "data.nc").attrs["interrupted"] == "no"
    assert not (first / "unfinished").exists()


def test_simultaneous_starts_use_separate_folders(monkeypatch, tmp_path):
    make = pathlib.Path.mkdir

    def just_after_another(path, *arguments, **options):
        if path.name == "mine":
            os.makedirs(path, exist_ok=True)
        make(path, *arguments, **options)

    monkeypatch.setattr(pathlib.Path, "mkdir", just_after_another)
    folder = result_folder.reserve(tmp_path, "mine", explicit=False)
    assert folder.name == "mine-2"


DISK = (*RUN, "--rounds", "200", "--seeds", "3", "--name", "mine")


@contextlib.contextmanager
def no_file_above(kib):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kib * 1024, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_full_disk_prints_the_table_and_one_warning(here, tmp_path):
    assert here(*DISK, "--out", "elsewhere")[2] == 0  # its compiled programs are kept, too
    with no_file_above(kib=60):
        printed, error, code = here(*DISK)
    assert code == 1
    assert "fairness" in printed
    assert "cannot write the result (File too large)" in error
    assert "use --resume to write the result" in error
    # A changed command is named and not mixed in.
    _, error, code = here(*DISK, "--set", "reward.gamma=3", "--resume")
    assert code == 2
    assert "reward.gamma of 'random' = 3.0 (was 5.0)" in error
    _, error, code = here(*DISK)
    assert (code, "Use --resume to continue the unfinished run." in error) == (2, True)
    link = tmp_path / "results" / "mine" / "figures"
    link.symlink_to(tmp_path)
    _, error, code = here(*DISK, "--resume")
    assert (code, "figures: must be a folder or a file, not a link" in error) == (2, True)
    link.unlink()
    printed, error, code = here(*DISK, "--resume")
    assert (code, "Written to" in printed) == (0, True)
    found, whole = (xr.load_dataset(f"{out}/mine/data.nc") for out in ("results", "elsewhere"))
    xr.testing.assert_equal(found, whole)
    with no_file_above(kib=20):  # no run can be stored either
        _, error, code = here(*DISK, "--out", "nowhere")
    assert code == 1
    assert "use --resume to repeat unsaved runs" in error


class Drops:
    """Gets a signal where Python drops exceptions, as in a callback of JAX."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)


def hear(looked):
    with output.stoppable():
        os.kill(os.getpid(), signal.SIGHUP)
        check_stop()
        Drops()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "the second one ends it"
        if looked:
            check_stop()


@pytest.mark.parametrize("looked", [True, False])
def test_signals_are_always_handled_unless_ignored(capsys, looked):
    heard = {number: signal.getsignal(number) for number in output.SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with pytest.raises(SystemExit) as stop:
            hear(looked)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, heard[signal.SIGHUP])
    assert {number: signal.getsignal(number) for number in heard} == heard
    assert stop.value.code == 143
    what = "stopped the command before the first run" if looked else "arrived after the last run"
    assert f"SIGTERM {what}" in capsys.readouterr().err
    check_stop()


def test_exit_status_identifies_the_signal():
    assert output.status_of(KeyboardInterrupt()) == 130
    assert output.status_of(RuntimeError()) == 1
