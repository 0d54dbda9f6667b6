"""Sweeps in which rounds overlap: beside rounds, by row, and as a table of answers."""

import csv

import jax
import numpy as np
import pytest

from pause_jax import Asynchronous, ConfigError, simulate, sweep
from pause_jax.analysis import events, space
from pause_jax.config import Polynomial
from pause_jax.deploy.selector import Selector
from pause_jax.policies import named
from tests.support.runs import LEARN

KEYS = jax.random.split(jax.random.key(3), 2)
CLOCK = Asynchronous(concurrency=4, buffer=3, open_slots=1)
BASE = LEARN.replace(policy=named("random"), dropout=0.2)
STEPS = BASE.replace(clock=CLOCK)
CONFIGS = {
    "rounds": BASE,
    "steps": STEPS,
    "plain": STEPS.override({"clock.staleness.exponent": 0.0}),
    "pause": STEPS.replace(policy=named("pause")),
    "oort": STEPS.replace(policy=named("oort")),
}


@pytest.fixture(scope="module")
def result():
    return sweep(CONFIGS, KEYS, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_is_what_simulate_gives(result, name):
    alone = simulate(CONFIGS[name], KEYS[1])
    row = result.sel(config=name, seed=1)
    slots = CONFIGS[name].num_slots
    for quantity in ("clients", "in_time"):
        ours = row[quantity].values[:, :slots]
        np.testing.assert_array_equal(ours, alone.values[quantity], err_msg=quantity)
    for quantity in ("clock", "test_accuracy", "latency", "spent", "train_loss"):
        np.testing.assert_allclose(row[quantity], alone.values[quantity], rtol=1e-5, atol=1e-6)
    if name != "rounds":
        for quantity in ("staleness", "answered", "in_flight", "waiting"):
            ours = row[quantity].values[..., :slots] if row[quantity].ndim == 2 else row[quantity]
            np.testing.assert_allclose(ours, alone.values[quantity], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_clock_of_a_run_and_the_clock_of_its_config_have_two_names(result):
    assert result["clock"].dims == ("config", "seed", "round")
    assert result["clock.name"].values.tolist() == ["synchronous", *["asynchronous"] * 4]
    assert np.all(result.staleness.sel(config="rounds").max("slot") <= 0)
    assert result.staleness.sel(config="steps").max() > 1
    # The factor changes the model alone.
    one, other = (result.sel(config=name) for name in ("steps", "plain"))
    np.testing.assert_array_equal(one.clients, other.clients)
    assert np.any(one.test_loss != other.test_loss)


@pytest.mark.slow
def test_answers_are_a_table(result, tmp_path):
    with events.write_answers(result, tmp_path).open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == int((result.clients >= 0).sum())
    own = [row for row in lines if (row["config"], row["seed"]) == ("steps", "1")]
    run = result.sel(config="steps", seed=1)
    assert [float(row["finish"]) for row in own] == sorted(float(row["finish"]) for row in own)
    for row in own:
        i = int(row["step"]) - 1
        (slot,) = np.flatnonzero(run.clients.values[i] == int(row["client"]))
        assert float(row["finish"]) == pytest.approx(float(run.answered[i, slot]))
        took = float(row["finish"]) - float(row["start"])
        assert took == pytest.approx(float(run.took[i, slot]), abs=1e-5)
        assert i - int(row["version"]) == int(run.staleness[i, slot])
        assert row["averaged"] == str(int(run.in_time[i, slot]))


def test_numbers_of_a_clock_can_be_tuned_and_its_sizes_cannot():
    axis = space.axis_of("clock.staleness.exponent=0..2", STEPS)
    assert axis.path == "clock.staleness.exponent"
    with pytest.raises(ConfigError, match=r"clock\.buffer is no number that can change"):
        space.axis_of("clock.buffer=1..5", STEPS)
    assert STEPS.clock.staleness == Polynomial()


def test_a_selector_refuses_rounds_that_overlap():
    with pytest.raises(ConfigError, match="clock = 'asynchronous': a Selector chooses round by"):
        Selector(STEPS.replace(learning=None), KEYS[0])
    assert Selector(BASE.replace(learning=None), KEYS[0]).round == 0
