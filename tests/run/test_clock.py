"""The simulated clock of long runs, and other sums over a million rounds in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pause_jax import QUANTITIES, SimConfig, simulate
from pause_jax.bandit import empty_stats, update_stats
from pause_jax.policies import RoundRobin
from pause_jax.run.rounds.horizon import LONGEST, advanced
from pause_jax.world.availability import Diurnal, Intervals
from pause_jax.world.latency import Traces

KEY = jax.random.key(0)
MILLION = 10**6
ROUNDS = 50_000
TENTH = float(np.float32(0.1))
LONG = SimConfig(
    num_clients=2, num_selected=1, num_rounds=ROUNDS, eval_every=ROUNDS, learning=None,
    policy=RoundRobin(), track_regret=False, latency=Traces.of([[0.1], [0.1]]),
)  # fmt: skip


def after_a_million(seconds):
    """The clock after a million rounds of so many seconds."""

    def step(_, clock):
        return advanced(clock[0], clock[1], jnp.float32(seconds))

    return lax.fori_loop(0, MILLION, step, (jnp.zeros(()), jnp.zeros(())))[0]


@pytest.mark.parametrize("batched", [False, True])
def test_a_million_rounds_sum_to_one_rounding_error(batched):
    seconds = np.asarray([0.1, 0.3, 1e-3, 3333.3], np.float32)
    run = jax.jit(jax.vmap(after_a_million) if batched else after_a_million)
    clock = run(seconds) if batched else np.asarray([run(each) for each in seconds])
    np.testing.assert_allclose(clock, seconds.astype(float) * MILLION, rtol=2.0**-23)
    # A plain sum, which the compiler must not make of it.
    plain = jax.jit(lambda x: lax.fori_loop(0, MILLION, lambda _, t: t + x, jnp.zeros(())))
    assert abs(float(plain(seconds[0])) / (float(seconds[0]) * MILLION) - 1) > 1e-3


@pytest.mark.slow
def test_clock_of_a_long_run_is_the_exact_sum_of_rounds():
    run = simulate(LONG, KEY, record=("clock", "num_played"))
    exact = TENTH * np.arange(1, ROUNDS + 1)
    np.testing.assert_allclose(run.clock, exact, rtol=1e-7)
    # The end by the clock reads the same sum: a plain one is 25 rounds off by then.
    end = TENTH * (ROUNDS - 1000)
    ended = simulate(LONG.replace(max_seconds=end), KEY, record=("num_played",))
    assert abs(int(ended.num_played) - (ROUNDS - 1000)) <= 1


@pytest.mark.parametrize("period", [10.0, 86_400.0])
def test_availability_traces_are_correct_after_a_million_seconds(period):
    half = Intervals.of([[(0.25 * period, 0.75 * period)]], period=period)
    daily = Diurnal(period=period, share=0.5, spread=0.0)
    clock = np.float32(MILLION) + np.linspace(0, 2 * period, 401, dtype=np.float32)
    phase = clock.astype(float) / period % 1

    def available(trace, seconds):
        return trace.step((), KEY, seconds, 1)[0][0]

    # But for what float32 cannot tell apart at such times: a sixteenth of a second.
    for trace, begins, ends in ((half, 0.25, 0.75), (daily, 0.0, 0.5)):
        here = jax.jit(jax.vmap(functools.partial(available, trace)))
        found = np.asarray(here(clock))
        edges = np.asarray([begins, ends, 1.0])
        near = np.abs(phase[:, None] - edges).min(axis=1) * period < 0.1
        expected = (begins <= phase) & (phase < ends)
        np.testing.assert_array_equal(found[~near], expected[~near])
        assert 0.3 < expected.mean() < 0.7
        assert near.mean() < 0.1


@pytest.mark.filterwarnings("ignore:latency.min_latency")
def test_clock_stops_before_overflow_and_never_decreases():
    endless = LONG.replace(num_rounds=6, eval_every=1, latency=Traces.of([[1e38], [3e17]]))
    clock = np.asarray(simulate(endless, KEY).clock)
    assert np.isfinite(clock).all()
    np.testing.assert_array_equal(clock, np.float32(LONGEST))
    both, rest, seen = np.float32(3e17), np.float32(0), []
    for _ in range(5):
        both, rest = jax.jit(advanced)(both, rest, np.float32(3e17))
        seen.append(float(both))
    np.testing.assert_allclose(seen, [6e17, 9e17, LONGEST, LONGEST, LONGEST], rtol=1e-6)
    assert f"{LONGEST:g}".replace("+", "") in QUANTITIES["clock"].doc


def test_mean_speed_is_accurate_after_a_million_observations():
    speed = np.random.default_rng(0).uniform(0.05, 1.0, MILLION).astype(np.float32)

    def observe(stats, each):
        return update_stats(stats, jnp.zeros(1, jnp.int32), each[None]), None

    stats, _ = jax.jit(lambda x: lax.scan(observe, empty_stats(1), x))(speed)
    assert int(stats.counts[0]) == MILLION
    # The standard error of such a mean is 3e-4 of it.
    np.testing.assert_allclose(stats.mean_speed[0], speed.astype(float).mean(), rtol=5e-5)
