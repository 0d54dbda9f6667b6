"""What is written as TOML, Python's own reader reads back."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pause_jax import presets
from pause_jax.config import config_file
from pause_jax.config.toml_text import toml_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8
)


@given(st.dictionaries(TEXTS, VALUES))
def test_a_table_comes_back(table):
    assert repr(tomllib.loads(toml_text(table))) == repr(_tables_last(table))


def _tables_last(table: dict[str, Any]) -> dict[str, Any]:
    """The order of the text: a table of a table comes after its values."""
    own = {name: value for name, value in table.items() if isinstance(value, dict)}
    plain = {name: value for name, value in table.items() if name not in own}
    return plain | {name: _tables_last(value) for name, value in own.items()}


def test_a_table_has_the_usual_form():
    table = {
        "path": {"a b": {"x": {"hidden": [32, [16]], "on": True}}, "y": 1e-5},
        "name": 'q"\n\x7f',
    }
    assert toml_text(table) == (
        'name = "q\\"\\n\\u007f"\n\n[path]\ny = 1e-05\n\n[path."a b".x]\n'
        "hidden = [\n    32,\n    [\n        16,\n    ],\n]\non = true\n"
    )
    with pytest.raises(TypeError, match="None: has no form in TOML"):
        toml_text({"x": None})


def test_a_preset_comes_back():
    config = presets.digits_small()
    assert tomllib.loads(toml_text(config_file.to_dict(config))) == config_file.to_dict(config)
