"""Chunks on other processes: Dask, submitit, shards. Who runs a chunk changes no bit, a death loses
nothing, and nothing runs to its end twice.
"""

import collections
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures

import jax
import pytest
import xarray as xr

from pause_jax import ConfigError, SweepInterrupted, merge, run_shard, sweep
from pause_jax.sweeps import execute, leases, workers
from tests.support.watched import CONFIGS, SETTINGS, Watched, events, keys

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
CHUNKS = 12


@pytest.fixture(scope="module")
def whole():
    return sweep(CONFIGS, keys(), **SETTINGS)


def ends(folder):
    return collections.Counter(each.chunk for each in events(folder) if each.what == "end")


def at_work(folder):
    """Processes by the chunk that they have begun and not ended."""
    found = {}
    for each in events(folder):
        if each.what == "begin":
            found[each.chunk] = each.process
        else:
            found.pop(each.chunk, None)
    return found


def assert_all_once(folder):
    """Each chunk ended once, and one of a process that died was begun again."""
    assert set(ends(folder).values()) == {1}
    assert len(ends(folder)) == CHUNKS
    begun = collections.Counter(each.chunk for each in events(folder) if each.what == "begin")
    assert sum(begun.values()) > CHUNKS
    assert not at_work(folder)


def kill_one(folder):
    """Kill a process that has begun a chunk, and whose finished chunks are all stored.

    Of what a worker of Dask has finished, but the client not fetched, nobody else has a copy.
    """
    while True:
        time.sleep(0.02)
        for process in at_work(folder).values():
            os.kill(process, signal.SIGSTOP)
            own = {each.chunk for each in events(folder) if each.process == process}
            names = [path.stem.split("-")[1:] for path in (folder / "kept").glob("chunk-*")]
            stored = {f"{int(group)}-{int(first)}" for group, first in names}
            running = {chunk for chunk, each in at_work(folder).items() if each == process}
            if stored and running and own - stored == running:
                os.kill(process, signal.SIGKILL)
                return
            os.kill(process, signal.SIGCONT)


def test_a_dask_cluster_of_which_a_worker_dies_and_one_is_added(whole, tmp_path):
    distributed = pytest.importorskip("distributed")

    def disturb(cluster):
        for nanny in cluster.workers.values():
            nanny.close_gracefully()  # starts no other: the one that is added is enough
        kill_one(tmp_path)
        cluster.scale(3)

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        disturbing = threading.Thread(target=disturb, args=(cluster,))
        disturbing.start()
        executor = Watched(client.get_executor(), tmp_path, seconds=0.4)
        result = sweep(CONFIGS, keys(), executor=executor, store=tmp_path / "kept", **SETTINGS)
        disturbing.join()
    xr.testing.assert_identical(result, whole)
    xr.testing.assert_identical(merge(tmp_path / "kept"), whole)
    assert_all_once(tmp_path)
    assert len({each.process for each in events(tmp_path)}) > 2


def test_jobs_of_submitit_of_which_one_dies(tmp_path, monkeypatch):
    """A job is a start of Python, so there is one chunk, which runs again."""
    submitit = pytest.importorskip("submitit")
    # Seconds for which a slow file system may still hide the result of a job that has ended.
    monkeypatch.setattr(submitit.Job, "_results_timeout_s", 1)
    arguments = {"pause": CONFIGS["pause"]}, keys()[:1]
    executor = Watched(submitit.LocalExecutor(tmp_path / "jobs"), tmp_path, dying=(0, 0))
    result = sweep(*arguments, executor=executor, **SETTINGS)
    xr.testing.assert_identical(result, sweep(*arguments, **SETTINGS))
    assert (tmp_path / "died").exists()
    assert list(ends(tmp_path).values()) == [1]


def shard(folder, number, seconds, dying=0):
    words = [str(folder), f"{number}/3", str(seconds), str(dying)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.watched", *words],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_shards_of_unequal_speed_do_not_idle_when_one_dies(whole, tmp_path):
    """One that comes later: tests/sweeps/test_resume.py."""
    dying, *others = shard(tmp_path, 1, 0.1, 3), shard(tmp_path, 2, 0.1), shard(tmp_path, 3, 0.5)
    assert dying.wait(timeout=120) == -signal.SIGKILL
    dying.communicate()
    for process in others:
        printed, error = process.communicate(timeout=120)
        assert process.returncode == 0, error[-3000:]
        assert printed.split()[1] == "0", "chunks were left"
    xr.testing.assert_equal(merge(tmp_path / "kept"), whole)
    assert_all_once(tmp_path)
    assert not list((tmp_path / "kept").glob("lease-*"))
    of_each = {each.process: 0.0 for each in events(tmp_path)}
    counts = collections.Counter(each.process for each in events(tmp_path) if each.what == "end")
    del of_each[dying.pid]
    for each in events(tmp_path):
        if each.process in of_each:
            of_each[each.process] = each.seconds
    # No shard was done before the last chunk was taken: none idled while there was work.
    taken = max(each.seconds for each in events(tmp_path) if each.what == "begin")
    assert min(of_each.values()) > taken - 0.5
    fast, slow = (counts[process.pid] for process in others)
    assert fast > slow >= 1


class Inline:
    """An executor that runs each task at once, in this process."""

    def __init__(self, before=lambda number: None):
        self.before, self.submitted = before, 0

    def submit(self, function, /, *arguments):
        self.submitted += 1
        task: futures.Future[object] = futures.Future()
        try:
            self.before(self.submitted)
            # What travels is pickled.
            task.set_result(function(*pickle.loads(pickle.dumps(arguments))))
        except Exception as error:
            task.set_exception(error)
        return task


def test_a_pool_of_threads_gives_the_bits_of_a_sweep(whole):
    with futures.ThreadPoolExecutor(2) as pool:
        xr.testing.assert_identical(sweep(CONFIGS, keys(), executor=pool, **SETTINGS), whole)


def test_finished_chunks_of_a_store_are_not_sent(whole, tmp_path):
    sweep(CONFIGS, keys(), store=tmp_path, **SETTINGS)
    for path in sorted(tmp_path.glob("chunk-*"))[:2]:
        path.unlink()
    executor = Inline()
    result = sweep(CONFIGS, keys(), store=tmp_path, executor=executor, **SETTINGS)
    xr.testing.assert_identical(result, whole)
    assert executor.submitted == 1 + 2


def test_a_custom_class_of_a_script_travels(tmp_path):
    """Of no module that a worker can import."""
    names = {"__name__": "a_script"}
    exec(OWN, names)
    config = {"own": CONFIGS["random"].replace(policy=names["Own"]())}
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom pause_jax.sweep import workers"
    sent = workers.packed(config, keys(), {"max_batch": 1})
    program = f"{code}; print(workers.prepare_task({sent!r})[1]['own'][0]['digest'])"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    found = workers.prepare_task(sent)
    assert not isinstance(found, workers.Failure)
    _, made_by, _ = found
    assert ran.stdout.splitlines()[-1] == made_by["own"][0]["digest"]


OWN = """
from pause_jax.policies import Random

class Own(Random):
    name = "own_of_a_script"

    def build(self, context):
        return super().build(context)
"""


def changed(monkeypatch, **changes):
    """From now on a worker has something else."""
    prepared = workers._plan

    def other(arguments):
        plan = prepared(arguments)
        made_by = {**plan.made_by}
        for name, value in changes.items():
            made_by[name] = made_by[name] | value if isinstance(value, dict) else value
        return plan._replace(made_by=made_by)

    monkeypatch.setattr(workers, "_plan", other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": {"jax": "0.9.9"}}, r"jax was .*, is 0\.9\.9"),
        ({"code": "0" * 64}, "code of pause_jax has changed"),
        ({"machine": {"x64": True}}, "x64 was False, is True"),
    ],
)
def test_workers_of_other_code_are_refused_by_name_before_any_run(monkeypatch, changes, words):
    changed(monkeypatch, **changes)
    executor = Inline()
    with pytest.raises(ConfigError, match=rf"the worker on .* is another: {words}"):
        sweep(CONFIGS, keys(), executor=executor, **SETTINGS)
    assert executor.submitted == 1


def test_a_later_worker_of_another_processor_is_refused_and_finished_runs_are_kept(monkeypatch):
    def before(number):
        if number == 4:
            changed(monkeypatch, machine={"device": "H100"})

    with pytest.raises(SweepInterrupted, match="is another: device was cpu, is H100") as stopped:
        sweep(CONFIGS, keys(), executor=Inline(before), **SETTINGS)
    assert stopped.value.finished.clock.notnull().sum() > 0


def test_the_processor_of_the_client_does_not_matter(monkeypatch, whole):
    changed(monkeypatch, machine={"device": "H100", "platform": "gpu"})
    result = sweep(CONFIGS, keys(), executor=Inline(), **SETTINGS)
    xr.testing.assert_equal(result, whole)
    assert result.attrs["made_by"] != whole.attrs["made_by"]


def test_a_chunk_whose_workers_die_every_time_ends_the_sweep():
    def before(number):
        if number > 3:
            raise OSError("gone")

    executor = Inline(before)
    with pytest.raises(SweepInterrupted, match=r"2 of 12 runs.*a worker failed: OSError\('gone'\)"):
        sweep(CONFIGS, keys(), executor=executor, **SETTINGS)


def test_a_failure_in_a_chunk_is_told_and_not_tried_again(monkeypatch):
    def fails(*_):
        raise ValueError("no such thing")

    monkeypatch.setattr(workers, "run_chunks", fails)
    executor = Inline()
    with pytest.raises(SweepInterrupted, match=r"the worker on .*: ValueError: no such thing"):
        sweep(CONFIGS, keys(), executor=executor, **SETTINGS)
    assert executor.submitted == 1 + CHUNKS


def test_what_cannot_be_given_with_an_executor_is_refused():
    with pytest.raises(ConfigError, match="devices: leave them out"):
        sweep(CONFIGS, keys(), executor=Inline(), devices=jax.devices(), progress=False)


# Shards in one process.


def test_a_shard_that_is_left_alone_runs_everything(whole, tmp_path):
    share = run_shard(CONFIGS, keys(), (2, 3), store=tmp_path, **SETTINGS)
    assert share == (CHUNKS, CHUNKS, 0)
    xr.testing.assert_equal(merge(tmp_path), whole)
    assert run_shard(CONFIGS, keys(), (1, 3), store=tmp_path, **SETTINGS) == (0, 0, 0)
    with pytest.raises(ConfigError, match="shards was 3, is 5"):
        run_shard(CONFIGS, keys(), (1, 5), store=tmp_path, **SETTINGS)
    with pytest.raises(ConfigError, match="shard 5/4: the first must be"):
        run_shard(CONFIGS, keys(), (5, 4), store=tmp_path, **SETTINGS)


def test_a_shard_skips_what_another_finished_after_it_looked(whole, tmp_path, monkeypatch):
    claim = leases.Leases.claim

    def late_claim(self, path):
        """Another shard runs everything between this shard's look and its first claim."""
        monkeypatch.setattr(leases.Leases, "claim", claim)
        assert run_shard(CONFIGS, keys(), (2, 2), store=tmp_path, **SETTINGS).open == 0
        return claim(self, path)

    monkeypatch.setattr(leases.Leases, "claim", late_claim)
    assert run_shard(CONFIGS, keys(), (1, 2), store=tmp_path, **SETTINGS) == (0, 0, 0)
    xr.testing.assert_equal(merge(tmp_path), whole)


def test_a_shard_leaves_what_others_run_and_runs_damaged_chunks_again(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "EXPIRES", 0.6)
    monkeypatch.setattr(execute, "LOOK_EVERY", 0.1)
    run_shard(CONFIGS, keys(), (1, 2), store=tmp_path, **SETTINGS)
    chunks = sorted(tmp_path.glob("chunk-*"))
    chunks[0].write_bytes(b"")
    chunks[5].unlink()
    with pytest.raises(ConfigError, match=r"10 of 12 runs.* Start one of its shards again"):
        merge(tmp_path)
    other = leases.Leases()
    assert other.claim(tmp_path / "lease-000-0000005")
    share = run_shard(CONFIGS, keys(), (1, 2), store=tmp_path, **SETTINGS)
    assert share == (1, 1, 1)
    # A process that is no more is not waited for.
    other.close()
    assert run_shard(CONFIGS, keys(), (1, 2), store=tmp_path, **SETTINGS) == (1, 1, 0)
    xr.testing.assert_equal(merge(tmp_path), whole)
    assert merge(tmp_path).attrs["interrupted"] == "no"


def test_the_lease_of_a_process_that_died_before_it_wrote_it_is_taken(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "UNWRITTEN", 0.5)
    monkeypatch.setattr(execute, "LOOK_EVERY", 0.1)
    run_shard(CONFIGS, keys(), (1, 2), store=tmp_path, **SETTINGS)
    (tmp_path / "chunk-000-0000005.npz").unlink()
    path = tmp_path / "lease-000-0000005"
    path.touch()
    assert not leases.Leases().claim(path), "it may be about to be written"
    assert run_shard(CONFIGS, keys(), (1, 2), store=tmp_path, **SETTINGS) == (1, 1, 0)
    xr.testing.assert_equal(merge(tmp_path), whole)
    # One that is written within that time is not.
    path.touch()
    mine, other = leases.Leases(), leases.Leases()
    assert not mine.claim(path)
    path.unlink()
    assert other.claim(path)
    time.sleep(0.6)
    assert not mine.claim(path)
    other.close()


def test_a_merge_says_what_is_missing(tmp_path):
    with pytest.raises(ConfigError, match="holds no kept sweep"):
        merge(tmp_path)
    run_shard(CONFIGS, keys(), (2, 4), store=tmp_path, **SETTINGS)
    for path in sorted(tmp_path.glob("chunk-*"))[2:6]:
        path.unlink()
    with pytest.raises(ConfigError, match=r"8 of 12 runs, 1 of 2 configs are there\. Start"):
        merge(tmp_path)
    some = merge(tmp_path, partial=True)
    assert some.config.values.tolist() == ["random"]
    assert some.attrs["interrupted"].startswith("after ")
