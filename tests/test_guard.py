"""The guard against slower programs: planted changes are found."""

import copy

import pytest

from tools.guard import LIMITS, worse

STORED = {"digits": {"programs": 9.0, "kernels": 256.0, "calls": 8e6, "rounds": 3.0}}


@pytest.mark.parametrize("value", LIMITS)
def test_guard_finds_a_twenty_percent_slowdown_or_one_more_program(value):
    found = copy.deepcopy(STORED)
    found["digits"][value] *= 1.2 if value != "programs" else 10 / 9
    (line,) = worse(STORED, found)
    assert line.startswith(f"digits, {value}: ")
    assert worse(found, STORED) == []


def test_guard_allows_noise_and_finds_a_missing_workload():
    noisy = {name: 1.05 * value for name, value in STORED["digits"].items()} | {"programs": 9.0}
    assert worse(STORED, {"digits": noisy}) == []
    assert len(worse(STORED, {})) == len(LIMITS)
