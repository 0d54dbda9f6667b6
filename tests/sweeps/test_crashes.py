"""A sweep that dies before any of its changes to its folder goes on, with the same bits.

A death is played in this process: from one change on, none reaches the disk any more. So each is
also a disk on which nothing can be written any more, and the sweep must come to its end.
"""

import contextlib
import threading
from concurrent.futures import thread as pools

import pytest
import xarray as xr

from pause_jax import ConfigError, merge, run_shard, sweep
from pause_jax.policies import named
from pause_jax.sweeps import checkpoint, execute, leases
from tests.support.disk import Disk
from tests.support.watched import SETTINGS, SMALL, keys

pytestmark = pytest.mark.slow

# Eight rounds change the folder as often as twenty, and each death plays them twice.
CONFIGS = {"random": SMALL.replace(num_rounds=8, policy=named("random"))}


def as_a_sweep(folder, chosen):
    return sweep(CONFIGS, chosen, store=folder, **SETTINGS)


def as_a_shard(folder, chosen):
    run_shard(CONFIGS, chosen, (1, 2), store=folder, **SETTINGS)
    return merge(folder)


def waiting():
    """Threads for which the process waits at its end, but those of pools, which are told to end."""
    told = set(pools._threads_queues)
    return [each for each in threading.enumerate() if not each.daemon and each not in told]


@pytest.mark.parametrize(
    ("play", "chunks", "saves", "least"),
    [(as_a_sweep, 2, False, 15), (as_a_shard, 2, False, 21), (as_a_sweep, 1, True, 25)],
    ids=["a sweep", "a shard", "the middle of a chunk"],
)
def test_a_death_before_any_change_of_the_folder_loses_nothing(
    play, chunks, saves, least, tmp_path, monkeypatch
):
    if saves:
        monkeypatch.setattr(checkpoint, "SAVE_EVERY", 0.0)
        monkeypatch.setattr(checkpoint, "SHARE", 1.0)
    # The process of a lease is this one, which lives on.
    monkeypatch.setattr(leases, "EXPIRES", 0.1)
    monkeypatch.setattr(leases, "UNWRITTEN", 0.1)
    monkeypatch.setattr(execute, "LOOK_EVERY", 0.02)
    chosen = keys()[:chunks]
    with Disk(tmp_path / "whole").watched() as disk:
        whole = play(tmp_path / "whole", chosen)
    assert len(disk.changes) >= least
    before = len(waiting())
    for number, change in enumerate(disk.changes):
        folder = tmp_path / str(number)
        with Disk(folder, number).watched() as dying, contextlib.suppress(ConfigError):
            play(folder, chosen)
        assert dying.dead, change
        assert len(waiting()) == before, f"dead before {change}, it would not end"
        xr.testing.assert_equal(play(folder, chosen), whole)
