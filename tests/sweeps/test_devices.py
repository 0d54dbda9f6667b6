"""Sweeps on eight devices."""

import pytest

from tests.support.command import python

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_eight_devices_match_one_device():
    ran = python("tests/support/devices.py", JAX_PLATFORMS="cpu", PYTHONPATH=".")
    assert ran.stdout.strip() == "ok", ran.stderr[-3000:]
