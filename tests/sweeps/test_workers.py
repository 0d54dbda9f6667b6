"""Chunks on other processes: Dask, submitit. Who runs a chunk changes no bit, a death loses
nothing, and nothing runs to its end twice.
"""

import collections
import os
import pickle
import signal
import threading
import time
from concurrent import futures

import jax
import pytest
import xarray as xr

from pause_jax import ConfigError, SweepInterrupted, sweep
from pause_jax.sweeps import executor as workers
from pause_jax.sweeps.provenance import fingerprint
from tests.support.command import python
from tests.support.watched import CONFIGS, SETTINGS, Watched, events, keys

pytestmark = pytest.mark.slow

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
    """Kill a process that has begun a second chunk and whose first one is stored.

    Of what a worker of Dask has finished, but the client not fetched, nobody else has a copy.
    """
    deadline = time.monotonic() + 300
    victims: list[int] = []
    while not victims and time.monotonic() < deadline:
        time.sleep(0.02)
        names = [path.stem.split("-")[1:] for path in (folder / "kept").glob("chunk-*.npz")]
        stored = {f"{int(group)}-{int(first)}" for group, first in names}
        finished = {each.process for each in events(folder) if each.chunk in stored}
        victims = [process for process in at_work(folder).values() if process in finished]
    for process in victims[:1]:
        os.kill(process, signal.SIGKILL)


@pytest.mark.nightly
def test_dask_cluster_survives_a_killed_and_an_added_worker(whole, tmp_path):
    distributed = pytest.importorskip("distributed")

    def disturb(cluster):
        try:
            for nanny in cluster.workers.values():
                nanny.close_gracefully()  # starts no other: the one that is added is enough
            kill_one(tmp_path)
        finally:
            (tmp_path / "released").touch()
        cluster.scale(3)

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        disturbing = threading.Thread(target=disturb, args=(cluster,))
        disturbing.start()
        executor = Watched(client.get_executor(), tmp_path, held=True)
        result = sweep(CONFIGS, keys(), executor=executor, store=tmp_path / "kept", **SETTINGS)
        disturbing.join()
    xr.testing.assert_identical(result, whole)
    xr.testing.assert_identical(sweep(CONFIGS, keys(), store=tmp_path / "kept", **SETTINGS), whole)
    assert_all_once(tmp_path)
    assert len({each.process for each in events(tmp_path)}) > 2


@pytest.mark.nightly
def test_submitit_survives_a_killed_job(tmp_path, monkeypatch):
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


def test_thread_pool_gives_the_same_bits(whole):
    with futures.ThreadPoolExecutor(2) as pool:
        xr.testing.assert_identical(sweep(CONFIGS, keys(), executor=pool, **SETTINGS), whole)


def test_finished_chunks_are_not_submitted(whole, tmp_path):
    sweep(CONFIGS, keys(), store=tmp_path, **SETTINGS)
    for path in sorted(tmp_path.glob("chunk-*"))[:2]:
        path.unlink()
    executor = Inline()
    result = sweep(CONFIGS, keys(), store=tmp_path, executor=executor, **SETTINGS)
    xr.testing.assert_identical(result, whole)
    assert executor.submitted == 1 + 2


def test_custom_class_of_a_script_reaches_workers():
    names = {"__name__": "a_script"}
    exec(OWN, names)
    config = {"own": CONFIGS["random"].replace(policy=names["Own"]())}
    code = "from pause_jax.sweeps import executor"
    sent = workers.packed(config, keys(), {"max_batch": 1})
    program = f"{code}; print(executor.provenance.fingerprint(executor._plan({sent!r}).made_by))"
    ran = python("-c", program)
    assert ran.stdout.splitlines()[-1] == fingerprint(workers._plan(sent).made_by)


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
        return plan._replace(made_by=plan.made_by | changes)

    monkeypatch.setattr(workers, "_plan", other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"jax": "0.9.9"}, r"jax = 0\.9\.9 \(was "),
        ({"code of pause_jax": "0" * 64}, "code of pause_jax has changed"),
        ({"x64": True}, r"x64 = True \(was False\)"),
    ],
)
def test_different_workers_are_rejected_before_any_run(monkeypatch, changes, words):
    changed(monkeypatch, **changes)
    executor = Inline()
    with pytest.raises(ConfigError, match=rf"the worker on .* differs: {words}"):
        sweep(CONFIGS, keys(), executor=executor, **SETTINGS)
    assert executor.submitted == 1


def test_worker_with_another_processor_is_rejected_and_finished_runs_are_kept(
    monkeypatch, tmp_path
):
    sweep(CONFIGS, keys(), store=tmp_path, **SETTINGS)
    for path in sorted(tmp_path.glob("chunk-*"))[:2]:
        path.unlink()

    def before(number):
        if number == 2:
            changed(monkeypatch, device="H100")

    with pytest.raises(SweepInterrupted, match=r"differs: device = H100 \(was cpu\)") as stopped:
        sweep(CONFIGS, keys(), store=tmp_path, executor=Inline(before), **SETTINGS)
    assert stopped.value.finished.clock.notnull().all()


def test_processor_of_the_submitter_does_not_matter(monkeypatch, whole):
    changed(monkeypatch, device="H100", platform="gpu")
    result = sweep(CONFIGS, keys(), executor=Inline(), **SETTINGS)
    xr.testing.assert_equal(result, whole)
    assert result.attrs["made_by"] != whole.attrs["made_by"]


def test_sweep_ends_if_workers_always_die():
    def before(number):
        if number > 3:
            raise OSError("gone")

    executor = Inline(before)
    failed = r"2 of 12 runs.*a worker failed: OSError\('gone'\)"
    with pytest.raises(SweepInterrupted, match=failed) as stopped:
        sweep(CONFIGS, keys(), executor=executor, **SETTINGS)
    assert stopped.value.finished.sizes["seed"] == 2


def test_failure_in_a_chunk_is_reported_and_not_retried(monkeypatch):
    def fails(*_):
        raise ValueError("no such thing")

    monkeypatch.setattr(workers, "run_chunks", fails)
    executor = Inline()
    with pytest.raises(SweepInterrupted, match=r"worker on .* failed: ValueError: no such thing"):
        sweep(CONFIGS, keys(), executor=executor, **SETTINGS)
    assert executor.submitted == 1 + CHUNKS


def test_devices_are_rejected_with_an_executor():
    with pytest.raises(ConfigError, match="devices: must be None with an executor"):
        sweep(CONFIGS, keys(), executor=Inline(), devices=jax.devices(), progress=False)
