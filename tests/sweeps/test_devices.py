"""Sweeps on eight devices."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.nightly
def test_eight_devices_match_one_device():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "devices.py")],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert ran.stdout.strip() == "ok", ran.stderr[-3000:]
