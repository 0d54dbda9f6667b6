"""Configs that nobody thought of: drawn from the rules of the fields, and damaged.

What is valid runs; everything else is one line. ``make soak`` draws as many as SOAK says, afresh
each time, and prints what became of them.
"""

import collections
import os

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pause_jax import config_file, simulate
from pause_jax.base.checks import check_fields
from pause_jax.base.struct import fields
from pause_jax.config import canonical, validate
from tests.support import generated, hostile

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
SOAK = int(os.environ.get("SOAK", "0"))
# Structures after which compiled programs are dropped: XLA's memory maps run into a limit.
DROP = 40
OUTCOMES: collections.Counter[str] = collections.Counter()


def examples(usual, *, share=1.0):
    """How many to draw: of a soak a share, afresh each time."""
    return settings(
        max_examples=max(usual, int(share * SOAK)) if SOAK else usual,
        derandomize=not SOAK,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@pytest.fixture(scope="module", autouse=True)
def figures(request):
    """What became of all examples, printed after a soak."""
    yield
    if SOAK:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print("", *(f"{n:8,} {what}" for what, n in sorted(OUTCOMES.items())), sep="\n")


def outcome(kind, call):
    """Count and return the result of a call, or None after a ConfigError of one line."""
    result = hostile.outcome(call, "", kind, longest=1500)
    OUTCOMES[f"{kind}: {'refused' if result is None else 'fine'}"] += 1
    return result


def checked(config):
    validate(config)
    return config


@examples(80)
@given(generated.simulations(learning=True))
def test_valid_config_round_trips_and_invalid_one_raises_one_line(config):
    config = outcome("drawn by the fields' rules", lambda: checked(config))
    if config is None:
        return
    read = config_file.loads(config_file.dumps(config))
    assert jax.tree.structure(read) == jax.tree.structure(config)
    jax.tree.map(np.testing.assert_array_equal, canonical(read), canonical(config))


def test_every_field_accepts_weird_value_or_refuses_it_in_one_line():
    names = {cls.__name__ for cls in generated.every_kind()}
    assert {"SimConfig", "Reward", "Learning", "Table", "Thompson", "Cnn3", "OnOff"} <= names
    refused = 0
    for cls in generated.every_kind():
        for name, *_ in fields(cls()):
            for value in generated.WEIRD:
                part = cls().replace(**{name: value})
                refused += outcome("every field", lambda part=part: kept(part)) is None
    assert refused > 1000


def kept(part):
    check_fields(part)
    return part


@examples(80)
@given(generated.damaged())
def test_value_without_rule_raises_one_line(config):
    outcome("damaged", lambda: checked(config))


# A valid config may have speeds that cannot be told apart: a run warns of it, and goes on.
@pytest.mark.filterwarnings("ignore:latency.min_latency")
@examples(12, share=0.2)
@given(st.data())
def test_valid_config_runs(data):
    config = data.draw(generated.simulations(learning=False))
    others = [data.draw(generated.renumbered(config)) for _ in range(3)]
    played = [play(each) for each in (config, *others)]
    OUTCOMES["run: structures"] += any(played)
    if OUTCOMES["run: structures"] % DROP == DROP - 1:
        jax.clear_caches()


def play(config):
    """Whether a config runs; that its run keeps what every run does."""
    record = ("clock", "clients", "first_broken_round")
    run = jax.device_get(outcome("run", lambda: simulate(config, KEY, record=record)))
    if run is None:
        return False
    assert run.first_broken_round == 0
    for clients in run.clients:
        chosen = np.sort(clients[clients >= 0])
        assert (np.diff(chosen) > 0).all(), "distinct"
        assert (chosen < config.num_clients).all()
    # NaN where no round was played; infinite with seconds near the end of float32.
    assert (np.diff(run.clock[np.isfinite(run.clock)], prepend=0) >= 0).all()
    return True
