"""The inputs of tests/trial.py: none gives a wrong result in silence."""

import pytest

from tests.trial import TRIALS

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.__name__)
def test_an_input_that_once_was_silently_wrong_no_longer_is(trial):
    trial()
