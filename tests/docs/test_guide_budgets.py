"""The guide to budgets: its Python runs, and its command sets what it says."""

import pathlib
import re
import shlex

import pytest

from pause_jax import presets
from pause_jax.cli.settings import changed
from pause_jax.config import validate
from pause_jax.privacy import Tiers
from tests.support.pages import play

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "budgets.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.slow
def test_its_python_runs(capsys):
    play(
        "docs/guides/budgets.md", smaller={"num_rounds=100,": "num_rounds=100, track_regret=False,"}
    )
    assert "50." in capsys.readouterr().out


def test_its_command_sets_a_law_of_two_tiers():
    command = next(code for language, code in BLOCKS if not language)
    words = shlex.split(command)
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    config = changed(presets.digits_small(), settings)
    validate(config)
    law = getattr(config.privacy.budget, "law", None)
    assert law == Tiers(values=(0.1, 1.0), shares=(0.5, 0.5))
