"""The regret laboratory: fits on known curves, bounds by hand."""

import math

import jax
import numpy as np
import pytest
import xarray as xr

from pause_jax import ConfigError, SimConfig, sweep
from pause_jax import regret as lab
from pause_jax.analysis.summary import summary
from pause_jax.bandit.reward import Reward
from pause_jax.policies import named
from pause_jax.privacy import PerCoordinateLaplace, Uniform
from pause_jax.world.latency import Traces

pytestmark = pytest.mark.slow

N = np.arange(1, 10_001)


def noisy(curve):
    rng = np.random.default_rng(0)
    return curve * (1 + 0.05 * rng.standard_normal((8, 1)))


def test_square_root_has_exponent_one_half():
    assert lab.growth(noisy(2.0 * np.sqrt(N))).exponent == pytest.approx(0.5, abs=1e-6)


def test_logarithmic_growth_is_distinguished_from_linear():
    linear, bent = (lab.growth(noisy(curve)) for curve in (3.0 * N, 10 + 5 * np.log(N)))
    assert linear.exponent == pytest.approx(1, abs=1e-6)
    assert bent.exponent < 0.2
    assert [linear.linear_r2, bent.log_r2] == pytest.approx([1, 1])
    assert max(linear.log_r2, bent.linear_r2) < 0.97


def test_zero_regret_has_no_exponent_and_short_curves_raise():
    assert math.isnan(lab.growth(np.zeros((3, 100))).exponent)
    with pytest.raises(ValueError, match="T >= 20"):
        lab.growth(np.ones((3, 10)))


def test_exponent_error_is_over_seeds():
    slopes = np.array([0.4, 0.5, 0.6])
    fit = lab.growth(N[None, :] ** slopes[:, None])
    assert fit.exponent == pytest.approx(0.5, abs=1e-6)
    assert fit.exponent_error == pytest.approx(slopes.std(ddof=1) / 3**0.5, rel=1e-4)


def test_bounds_match_manual_computation():
    # K = 4, m = 2, delta = 0.05, Delta_max = 8.4: n = e makes ln n = 1.
    latency = Traces.of([[0.05 / speed] for speed in (0.5, 0.1, 0.45, 0.3)])
    reward = Reward(alpha=3.0, gamma=2.0)
    config = SimConfig(num_clients=4, num_selected=2, learning=None, latency=latency, reward=reward)
    assert lab.smallest_gap([0.5, 0.1, 0.45, 0.3]) == pytest.approx(0.05)
    bounds = lab.bounds_of(config, math.e)
    assert bounds == pytest.approx(
        {
            "pause": 4 * 8.45 * (12 / 0.05**2 + 1 + 2 * math.pi**2 / 3),
            "bsfl": 4 * 8.4 * (12 / 0.05**2 + 1 + math.pi**2 / 3),
            "gap_free": 4 * math.sqrt(12 * math.e)
            + 8.4 * 4 * (1 + 2 * sum(s**-5.0 for s in range(1, 999))),
        },
        rel=1e-5,
    )


def test_regret_is_below_the_bounds_and_pause_grows_slower_than_cs_ucb():
    base = SimConfig(
        num_clients=20, num_rounds=2000, learning=None, reward=Reward(alpha=3.0, gamma=0.0)
    )
    configs = {name: base.replace(policy=named(name)) for name in ("pause", "cs_ucb")}
    keys = jax.random.split(jax.random.key(0), 4)
    record = ("regret", "clients", "played")
    curves = lab.cumulative(sweep(configs, keys, record=record, progress=False))
    fits = {name: lab.growth(curves.sel(config=name)) for name in configs}
    # At 2,000 rounds CS-UCB is still half exploring: linear growth shows later.
    assert fits["pause"].exponent < 0.75 < fits["cs_ucb"].exponent
    for bound in lab.bounds_of(base, np.arange(1, 2001)).values():
        assert (curves.sel(config="pause").values <= bound).all()


def test_measure_accumulates_the_regret_of_each_run():
    always = SimConfig(
        num_clients=10, num_selected=3, num_rounds=60, learning=None, policy=named("random")
    )
    # One program: they differ in a number.
    configs = {"always": always, "seldom": always.replace(availability=0.5)}
    keys = jax.random.split(jax.random.key(3), 3)
    curves = lab.measure(configs, keys)
    assert curves.dims == ("config", "seed", "round")
    assert curves.dtype == np.float64
    for name, config in configs.items():
        regret = sweep(config, keys, progress=False).regret.isel(config=0).values
        summed = np.cumsum(regret, axis=1, dtype=np.float64)
        np.testing.assert_allclose(curves.sel(config=name), summed, rtol=1e-5)


def test_measure_validates_all_configs_before_running():
    good = SimConfig(num_clients=10, learning=None)
    with pytest.raises(ConfigError, match="blind: track_regret = False"):
        lab.measure({"good": good, "blind": good.replace(track_regret=False)}, jax.random.key(0))


SPENT = SimConfig(
    num_clients=4,
    num_selected=2,
    num_rounds=60,
    policy=named("round_robin"),
    reward=Reward(alpha=0.0, gamma=0.0),
    privacy=PerCoordinateLaplace(budget=Uniform(horizon=5.0)),
    learning=None,
)
# The same program with a budget that lasts.
LASTS = SPENT.override({"privacy.budget.horizon": 100.0})


def test_rounds_without_clients_are_counted():
    """Four clients of five rounds fill ten rounds; in the other fifty nobody is left."""
    keys = jax.random.split(jax.random.key(1), 2)
    curves = lab.measure({"lasts": LASTS, "ends": SPENT}, keys)
    assert curves.empty_rounds.values.tolist() == [[0, 0], [50, 50]]
    ends = curves.sel(config="ends").values
    assert (ends[:, 9:] == ends[:, 9:10]).all()
    assert (ends[:, 9] > 0).all()
    rows = {row.name: row for row in lab.rows(curves)}
    assert (rows["lasts"].empty_rounds, rows["ends"].empty_rounds) == (0, 100)
    assert str(rows["ends"]).endswith("(100 rounds without clients)")
    (row,) = summary(sweep({"ends": SPENT}, keys, progress=False), 0.8)
    assert (row["rounds"], row["empty_rounds"]) == (120, 100)


def test_regret_is_nan_after_the_clock_ends_a_run():
    keys = jax.random.split(jax.random.key(1), 2)
    whole = lab.measure({"a": LASTS}, keys)
    clock = sweep(LASTS, keys, progress=False).clock.isel(config=0)
    seconds = float(clock.sel(round=40).mean())
    played = 1 + (clock < seconds).sum("round").values
    assert played[0] != played[1], "choose other keys"
    ended = lab.measure({"a": LASTS.replace(max_seconds=seconds)}, keys)
    for seed, number in enumerate(played):
        curve = ended[0, seed]
        np.testing.assert_allclose(curve[:number], whole[0, seed, :number])
        assert np.isnan(curve[number:]).all()
    (row,) = lab.rows(ended)
    last = [whole[0, seed, number - 1] for seed, number in enumerate(played)]
    assert row.regret == pytest.approx(np.mean(last))
    assert row.growth == lab.growth(whole[0, :, : played.min()])


def test_rows_are_sorted_with_mean_and_error():
    curves = xr.DataArray(
        np.stack([noisy(3.0 * N), noisy(np.sqrt(N))]),
        dims=("config", "seed", "round"),
        coords={"config": ["line", "root"], "round": N},
    )
    root, line = lab.rows(curves)
    assert (root.name, line.name) == ("root", "line")
    last = curves.sel(config="line").values[:, -1]
    assert line.regret == pytest.approx(last.mean())
    assert line.regret_error == pytest.approx(last.std(ddof=1) / 8**0.5)
    assert len(str(line)) == len(lab.HEADING)
