"""Sweeps with overlapping rounds: rows, clock fields, ledger and the guide's table of answers."""

import jax
import numpy as np
import pytest

from pause_jax import Asynchronous, ConfigError, simulate, sweep, tuning
from pause_jax.analysis import ledger_table
from pause_jax.deploy.selector import Selector
from pause_jax.learning import Iid
from pause_jax.policies import named
from pause_jax.world.latency import Traces
from tests.support.pages import block
from tests.support.runs import LEARN

KEYS = jax.random.split(jax.random.key(3), 2)
CLOCK = Asynchronous(concurrency=4, buffer=3, open_slots=1)
BASE = LEARN.replace(policy=named("random"), dropout=0.2, track_regret=False)
BASE = BASE.override({"learning.partition": Iid()})
STEPS = BASE.replace(clock=CLOCK)
CONFIGS = {
    "rounds": BASE,
    "steps": STEPS,
    "plain": STEPS.override({"clock.staleness.exponent": 0.0}),
}


BOTH = ("clients", "in_time", "clock", "test_accuracy", "latency", "spent", "train_loss")
OF_STEPS = ("staleness", "answered", "in_flight", "waiting")
RECORDED = (*BOTH, *OF_STEPS, "took", "test_loss")


@pytest.fixture(scope="module")
def result():
    return sweep(CONFIGS, KEYS, progress=False, record=RECORDED)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_row_matches_simulate(result, name):
    alone = simulate(CONFIGS[name], KEYS[1], record=RECORDED)
    row = result.sel(config=name, seed=1)
    slots = CONFIGS[name].num_slots
    for quantity in ("clients", "in_time"):
        ours = row[quantity].values[:, :slots]
        np.testing.assert_array_equal(ours, alone.values[quantity], err_msg=quantity)
    for quantity in BOTH[2:]:
        np.testing.assert_allclose(row[quantity], alone.values[quantity], rtol=1e-5, atol=1e-6)
    if name != "rounds":
        for quantity in OF_STEPS:
            ours = row[quantity].values[..., :slots] if row[quantity].ndim == 2 else row[quantity]
            np.testing.assert_allclose(ours, alone.values[quantity], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_recorded_clock_and_config_clock_have_different_names(result):
    assert result["clock"].dims == ("config", "seed", "round")
    assert result["clock.name"].values.tolist() == ["synchronous", *["asynchronous"] * 2]
    assert np.all(result.staleness.sel(config="rounds").max("slot") <= 0)
    assert result.staleness.sel(config="steps").max() > 1
    # The factor changes the model alone.
    one, other = (result.sel(config=name) for name in ("steps", "plain"))
    np.testing.assert_array_equal(one.clients, other.clients)
    assert np.any(one.test_loss != other.test_loss)


@pytest.mark.slow
def test_guide_exports_one_row_per_answer(result):
    names = {"result": result}
    exec(block("docs/guides/event_clock.md", "to_dataframe"), names)
    answers = names["answers"]
    assert len(answers) == int((result.clients >= 0).sum())
    for name in names["names"]:
        values = result[name].to_series().reindex(answers.index)
        np.testing.assert_array_equal(answers[name], values)
    ours = answers.xs(("steps", 1), level=("config", "seed"))
    clock = result.clock.sel(config="steps", seed=1)
    np.testing.assert_allclose(ours.groupby("round").answered.max(), clock, rtol=1e-6)
    assert (ours.staleness < ours.index.get_level_values("round")).all()


ALONE = STEPS.replace(learning=None, num_rounds=12)
OF_LEDGER = ("clients", "clock", "counts", "queried", "spent", "in_flight")
BOTH_KINDS = {"rounds": BASE.replace(learning=None), "steps": ALONE}


@pytest.fixture(scope="module")
def without_learning():
    return sweep(BOTH_KINDS, KEYS, max_batch=1, record=OF_LEDGER, progress=False)


def test_clock_numbers_share_a_program_and_clock_sizes_do_not():
    config = ALONE.replace(clock=CLOCK.replace(pace=2.0))
    axes = dict(
        tuning.axis_of(f"clock.{path}", config)
        for path in ("staleness.exponent=0..2", "pace=log:0.5..8")
    )
    sizes = dict([tuning.axis_of("clock.buffer=1..2", STEPS)])
    assert tuning.programs(sizes | axes, STEPS) == {"clock.buffer": 2}
    search = {"budget": 8, "seeds": 2, "sampler": "RandomSampler"}
    aim = tuning.objective_of("seconds")
    found = tuning.tune(config, axes, aim, KEYS[0], **search, progress=False)
    # A faster pace steps earlier, and the exponent changes no second.
    assert np.corrcoef(np.log(found.trials["clock.pace"]), found.trials["mean"])[0, 1] < -0.5
    assert isinstance(found.best.clock, Asynchronous)
    assert found.best.clock.pace is not None
    assert found.best.clock.pace > 2.0


def test_ledger_charges_starts(without_learning):
    run = without_learning
    books = ledger_table.ledgers(run)
    answered = [int((run.clients.sel(config="steps", seed=s) >= 0).sum()) for s in (0, 1)]
    under_way = run.in_flight.sel(config="steps").isel(round=-1).values
    charged = books["steps"].participations.sum(axis=1)
    assert charged.tolist() == (answered + under_way).tolist()
    assert np.all(under_way > 0)
    assert books["steps"].participations.max() <= ALONE.num_rounds
    (note,) = [note for note in ledger_table.notes(books) if "when its client starts" in note]
    assert note.startswith("steps: ")


@pytest.mark.parametrize("name", ["e3cs", "hics_fl"])
def test_policy_that_needs_rounds_is_rejected(name):
    """E3CS would divide by the probability of a client that was absent at its last decision."""
    with pytest.raises(ConfigError, match=rf"policy = '{name}': .* has no rounds"):
        simulate(ALONE.replace(policy=named(name), learning=None), KEYS[0])


def test_selector_rejects_overlapping_rounds():
    with pytest.raises(ConfigError, match=r"a Selector needs rounds that do not overlap\. Set"):
        Selector(ALONE, KEYS[0])
    quick = BASE.replace(learning=None, latency=Traces.of([[0.1]] * BASE.num_clients))
    assert Selector(quick, KEYS[0]).round == 0
