"""A sweep that dies before any of its changes to its folder goes on, with the same bits.

A death is played in this process: from one change on, none reaches the disk any more. So each is
also a disk on which nothing can be written any more, and the sweep must come to its end.
"""

import contextlib
import threading
from concurrent.futures import thread as pools

import pytest
import xarray as xr

from pause_jax import ConfigError, sweep
from pause_jax.policies import named
from pause_jax.sweeps import store
from tests.support.disk import Disk
from tests.support.watched import SETTINGS, SMALL, keys

pytestmark = pytest.mark.slow

# Each death plays the rounds twice. Three have two checkpoints.
CONFIGS = {"random": SMALL.replace(num_rounds=3, policy=named("random"))}


def run(folder, chosen):
    return sweep(CONFIGS, chosen, store=folder, **SETTINGS)


def waiting():
    """Threads for which the process waits at its end, but those of pools, which are told to end."""
    told = set(pools._threads_queues)
    return [each for each in threading.enumerate() if not each.daemon and each not in told]


def test_crash_before_any_file_change_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SAVE_EVERY", 0.0)
    chosen = keys()[:2]
    with Disk(tmp_path / "whole").watched() as disk:
        whole = run(tmp_path / "whole", chosen)
    assert len(disk.changes) >= 30
    before = len(waiting())
    for number, change in enumerate(disk.changes):
        folder = tmp_path / str(number)
        with Disk(folder, number).watched() as dying, contextlib.suppress(ConfigError):
            run(folder, chosen)
        assert dying.dead, change
        assert len(waiting()) == before, f"dead before {change}, it would not end"
        xr.testing.assert_equal(run(folder, chosen), whole)
