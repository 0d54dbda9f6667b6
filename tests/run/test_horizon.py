"""``max_seconds``: the same rounds as a longer run up to the horizon, and nothing after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pause_jax import (
    QUANTITIES,
    metrics,
    quantity,
    simulate,
    stack,
    sweep,
)
from pause_jax.policies import NAMED
from pause_jax.run.rounds.horizon import evaluated_at
from tests.support import runs
from tests.support.runs import KEY, assert_close, assert_same_bits

pytestmark = pytest.mark.slow

BANDIT = runs.BANDIT.replace(policy=NAMED["random"], track_regret=False)
SHORT = runs.LEARN.replace(policy=NAMED["random"], num_rounds=6, eval_every=2)
KEYS = jax.random.split(KEY, 3)
PER_ROUND = [name for name, q in QUANTITIES.items() if q.dims[:1] == ("round",)]


def before_the_end_of(clock, number: int) -> float:
    """A time in the midst of a round."""
    return float((clock[number - 2] + clock[number - 1]) / 2)


def assert_nothing_after(result, played: int) -> None:
    assert int(result.num_played) == played
    for name in PER_ROUND:
        rest = np.asarray(result.values[name])[played:]
        gap = QUANTITIES[name].gap
        np.testing.assert_array_equal(rest, np.full_like(rest, gap), err_msg=name)


def test_rounds_up_to_the_horizon_match_a_longer_run_bit_for_bit():
    whole = simulate(SHORT.replace(max_seconds=1e6), KEY)
    # Without a horizon it is another program, whose sums the compiler may order otherwise.
    assert_close(whole, simulate(SHORT, KEY).replace(config=whole.config))
    for last in (3, SHORT.num_rounds):
        ended = simulate(SHORT.replace(max_seconds=before_the_end_of(whole.clock, last)), KEY)
        assert_nothing_after(ended, last)
        for name in PER_ROUND:
            assert_same_bits(ended.values[name][:last], whole.values[name][:last])
    assert_same_bits(ended.replace(config=whole.config), whole)


def test_run_ended_by_the_clock_matches_a_run_of_n_rounds():
    third = simulate(SHORT.replace(num_rounds=3), KEY)
    ended = simulate(SHORT.replace(max_seconds=before_the_end_of(third.clock, 3)), KEY)
    for name in ("counts", "queried", "num_played", "first_nonfinite_round", "spent"):
        np.testing.assert_array_equal(ended.values[name], third.values[name], err_msg=name)
    assert_close(ended.variables, third.variables)
    # It is evaluated at its end, though round 3 is no multiple of 2, and never again.
    assert ended.eval_rounds.tolist() == [2, 3, -1]
    for name in ("test_loss", "test_accuracy", "eval_clock"):
        assert_close(ended.values[name], jnp.append(third.values[name], jnp.nan))


def test_rounds_start_until_the_clock_reaches_the_horizon():
    clock = simulate(BANDIT, KEY).clock
    for seconds, played in ((float(clock[3]), 4), (np.nextafter(clock[3], np.inf), 5), (1e-6, 1)):
        assert simulate(BANDIT.replace(max_seconds=float(seconds)), KEY).num_played == played


def test_batched_runs_end_independently():
    clocks = [simulate(BANDIT, key).clock for key in KEYS]
    # The fastest starts a fifth round, the others do not.
    seconds = float(np.mean(sorted(clock[3] for clock in clocks)[:2]))
    config = BANDIT.replace(max_seconds=seconds)
    expected = [int(np.sum(np.append(0, clock[:-1]) < seconds)) for clock in clocks]
    assert len(set(expected)) > 1, "choose other keys"
    batch = jax.device_get(jax.vmap(lambda key: simulate(config, key))(KEYS))
    for i, played in enumerate(expected):
        row = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        assert_nothing_after(row, played)
        assert_close(row, simulate(config, KEYS[i]))


def test_sweep_over_horizons_matches_single_runs():
    clock = simulate(SHORT, KEYS[0]).clock
    seconds = [before_the_end_of(clock, 3), before_the_end_of(clock, 6)]
    configs = {f"{s:g} s": SHORT.replace(max_seconds=s) for s in seconds}
    data = sweep({**configs, "rounds": SHORT}, KEYS, progress=False)
    assert data.eval_round.values.tolist() == [2, 4, 6]
    np.testing.assert_allclose(data.max_seconds, [*seconds, np.nan], rtol=1e-6)
    for name, config in configs.items():
        single, row = simulate(config, KEYS[0]), data.sel(config=name, seed=0)
        for each in ("played", "num_played", "clients", "counts"):
            np.testing.assert_array_equal(row[each], single.values[each], err_msg=each)
        np.testing.assert_allclose(row.clock, single.clock, rtol=1e-6)
        np.testing.assert_allclose(row.eval_clock, single.eval_clock, rtol=1e-6)
        np.testing.assert_allclose(row.test_loss, single.test_loss, rtol=1e-3)
        end = np.nanmax(single.clock)
        assert metrics.simulated_seconds(row).item() == pytest.approx(end)
        last = (int(single.num_played) - 1) // 2
        assert metrics.final_accuracy(data.sel(config=[name]))[0, 0] == pytest.approx(
            float(single.test_accuracy[last]), abs=1e-3
        )
    first = data.isel(config=0)
    assert first.eval_clock.isel(seed=0).notnull().values.tolist() == [True, True, False]
    assert (first.num_played == first.played.sum("round")).all()


@quantity("round")
def counted(r):
    """Tells Python that the round was computed."""
    jax.debug.callback(lambda _: COMPUTED.append(1), r.after.clock)
    return r.seconds


COMPUTED: list[int] = []


def test_no_round_is_computed_after_the_last_run_ends():
    config = BANDIT.replace(max_seconds=before_the_end_of(simulate(BANDIT, KEY).clock, 5))
    record = ("num_played", counted)
    ways = {
        "alone": lambda: simulate(config, KEY, record=record).num_played,
        "vmap": lambda: jax.vmap(lambda key: simulate(config, key, record=record).num_played)(KEYS),
        "two axes": lambda: jax.vmap(
            lambda one: jax.vmap(lambda key: simulate(one, key, record=record).num_played)(KEYS)
        )(stack([config, config])),
    }
    for name, run in ways.items():
        COMPUTED.clear()
        played = np.asarray(jax.block_until_ready(run()))
        jax.effects_barrier()
        assert len(COMPUTED) == played.max() * played.size < BANDIT.num_rounds * played.size, name


@quantity("round", gap=7)
def whole_number(r):
    """With a gap of its own."""
    return r.number


@quantity("round")
def no_gap(r):
    """A whole number without one."""
    return r.number


def test_unplayed_rounds_contain_the_gap_value():
    record = (whole_number, no_gap)
    config = BANDIT.replace(max_seconds=1e-6)
    result = simulate(config, KEY, record=record)
    assert result.whole_number.tolist() == [1, *[7] * 19]
    assert result.no_gap.tolist() == [1, *[-1] * 19]


@pytest.mark.parametrize(
    ("played", "rounds"), [(3, [3, -1, -1]), (4, [3, 4, -1]), (6, [3, 6, -1]), (8, [3, 6, 8])]
)
def test_last_evaluation_replaces_the_next_planned_one(played, rounds):
    config = BANDIT.replace(num_rounds=8, eval_every=3)
    assert evaluated_at(config, jnp.int32(played)).tolist() == rounds
