"""The faults of `make mutants`: each finds its place and its tests."""

import ast
import re

import pytest

from tools import mutants
from tools.layers import ROOT

FAULTS = mutants.faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_finds_its_place_once(fault):
    path, text = mutants.mutated(fault)
    ast.parse(text)
    assert text != path.read_text("utf-8")


@pytest.mark.parametrize("tests", sorted({fault.tests for fault in FAULTS}), ids=" ".join)
def test_a_fault_has_tests(tests):
    for test in tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists()
        if name:
            function = re.escape(name.partition("[")[0])
            assert re.search(rf"^def {function}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)


def test_names_of_faults_differ():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 120


@pytest.mark.parametrize(
    ("place", "right"),
    [("rng.keys of_nobody", "key"), ("rng.keys of_clients", "kei"), ("rng.keys of_clients", "key")],
)
def test_fault_without_unique_place_is_reported(place, right):
    fault = mutants.Fault("Misplaced", place, right, "", ("tests/rng",))
    with pytest.raises(
        mutants.LostPlaceError, match=f"Misplaced: {right!r} must occur once in {place}"
    ):
        mutants.mutated(fault)
