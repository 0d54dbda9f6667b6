"""When clients are there: hours of the day, intervals from a file, a chain that comes and goes."""

import functools

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, config_file, simulate, sweep
from pause_jax.policies import Random, RoundRobin
from pause_jax.privacy import NoPrivacy
from pause_jax.run.record.quantity import quantity
from pause_jax.world.availability import Diurnal, Intervals, OnOff, Phones
from pause_jax.world.latency import LogNormal

pytestmark = pytest.mark.slow

KEY = jax.random.key(11)
BASE = SimConfig(
    num_clients=12, num_selected=4, num_rounds=400, learning=None, latency=LogNormal(),
    policy=Random(), privacy=NoPrivacy(), track_regret=False,
)  # fmt: skip


@quantity("round", "client", gap=False)
def here(r):
    """Who could be chosen."""
    return r.available


def seen(config):
    """(who could be chosen [T, K], clock at each round's start [T], the result)."""
    result = simulate(config, KEY, record=("clock", "clients", "latency", here))
    clock = np.asarray(result.clock)
    return np.asarray(result.here), np.concatenate([[0.0], clock[:-1]]), result


def test_diurnal_clients_are_available_in_their_window_each_period():
    availability_trace = Diurnal(period=100.0, share=0.25, spread=0.8, recheck=7.0)
    config = BASE.replace(availability_trace=availability_trace, latency=LogNormal(slowest=5.0))
    there, clock, result = seen(config)
    begins = 0.8 * (np.arange(12) * (5**0.5 - 1) / 2 % 1)
    inside = (clock[:, None] / 100 - begins) % 1
    sure = np.minimum(inside, np.abs(inside - 0.25)) > 1e-4  # float32 of the clock
    np.testing.assert_array_equal(there[sure], (inside < 0.25)[sure])
    assert clock[-1] > 300
    assert np.ptp(there.sum(1)) > 1
    chosen = np.asarray(result.clients)
    for row, present in zip(chosen, there, strict=True):
        assert set(row[row >= 0]) <= set(np.flatnonzero(present))
    assert seen(config.override({"availability_trace.share": 1.0}))[0].all()


def test_server_polls_again_while_no_client_is_available(file):
    path = file("client,start,end\n" + "".join(f"{k},100,130\n" for k in range(12)))
    availability_trace = Intervals(path=path, recheck=15.0)
    there, clock, result = seen(BASE.replace(availability_trace=availability_trace))
    assert not there[:7].any()
    np.testing.assert_allclose(clock[:8], np.arange(8) * 15.0)
    assert there[7].all()
    assert (np.asarray(result.latency)[:7] == 15.0).all()
    assert (np.asarray(result.clients)[:7] == -1).all()


@functools.partial(jax.jit, static_argnums=2)
def step(trace, clock, num_clients):
    """Who is there by a trace without a state."""
    return trace.step((), KEY, clock, num_clients)[0]


def test_intervals_are_half_open_can_overlap_and_repeat():
    pairs = [[(0, 2), (1, 4)], [(3, 5)], [(9, 12)], [(2.5, 2.75)]]
    whole, again = Intervals.of(pairs), Intervals.of(pairs, period=10.0)
    for clock in (0.0, 1.5, 2.5, 2.75, 3.0, 4.0, 4.5, 5.0, 9.5, 10.5, 11.5, 12.0, 23.0):

        def inside(times, time=clock):
            return any(start <= time < end for start, end in times)

        def wrapped(times, time=clock):
            return any(
                start <= time + lap < end for start, end in times for lap in np.arange(-30, 31, 10)
            )

        found = step(whole, clock, 4)
        np.testing.assert_array_equal(found, [inside(times) for times in pairs], str(clock))
        found = step(again, clock, 4)
        np.testing.assert_array_equal(found, [wrapped(times) for times in pairs], str(clock))


def test_chain_has_the_stated_transition_probabilities():
    availability_trace = OnOff(leave=0.1, come=0.3)
    config = BASE.replace(availability_trace=availability_trace, num_clients=400)
    there, _, _ = seen(config)
    before, after = there[:-1], there[1:]
    # 160,000 steps: standard errors of 0.0009 and 0.002.
    assert (~after[before]).mean() == pytest.approx(0.1, abs=0.004)
    assert after[~before].mean() == pytest.approx(0.3, abs=0.01)
    assert there[0].mean() == pytest.approx(0.75, abs=0.08)
    # A negative control: independent availability has no memory.
    there = np.random.default_rng(0).random(there.shape) < 0.75
    assert (~there[1:][there[:-1]]).mean() == pytest.approx(0.25, abs=0.01)


@jax.jit
def later(trace, state, keys, clock):
    return jax.vmap(lambda key: trace.step(state, key, clock, 12)[0])(keys)


@jax.jit
def forecast(trace, clock, ahead):
    return trace.forecast(clock, ahead, 12)


@pytest.mark.parametrize("ahead", [1500.0, 20_000.0])
@pytest.mark.parametrize(
    ("trace", "state"),
    [
        (Diurnal(period=100.0), ()),
        (Intervals.of([[(5.0 * k, 60.0)] for k in range(12)], period=90.0), ()),
        (OnOff(leave=0.2, come=0.6), np.ones(12, bool)),
        (Phones(share=0.3, swing=0.9), (np.ones(12, np.float32), np.float32(40_000.0))),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_forecast_is_the_later_availability_of_available_clients(trace, state, ahead):
    clock, ahead, runs = np.float32(40_000.0), np.float32(ahead), 4000
    there = later(trace, state, jax.random.split(KEY, runs), clock + ahead)
    often = np.asarray(there).mean(axis=0)
    told = np.asarray(forecast(trace, clock, ahead))
    assert (np.abs(often - told) <= 4.5 * np.sqrt(told * (1 - told) / runs) + 1e-6).all()
    assert told.shape == (12,)
    assert 0 <= told.min() <= told.max() <= 1
    assert told.min() < 1


def test_connected_clients_can_be_busy():
    availability_trace = Diurnal(share=0.5, period=50.0, recheck=1.0)
    there, clock, _ = seen(BASE.replace(availability_trace=availability_trace, availability=0.5))
    begins = np.arange(12) * (5**0.5 - 1) / 2 % 1
    could = (clock[:, None] / 50 - begins) % 1 < 0.499
    assert there[could].mean() == pytest.approx(0.5, abs=0.05)


@pytest.fixture(scope="module")
def chains():
    """Who could be chosen, [seed, T, K], of two policies and of a restless chain, in one sweep."""
    calm = BASE.replace(availability_trace=OnOff(leave=0.05))
    configs = {
        "random": calm,
        "round_robin": calm.replace(policy=RoundRobin()),
        "restless": BASE.replace(availability_trace=OnOff(leave=0.9)),
    }
    data = sweep(configs, jax.random.split(KEY, 2), record=(here,), progress=False)
    return {name: data.here.sel(config=name).values for name in configs}


def test_policies_with_the_same_key_have_the_same_chain(chains):
    np.testing.assert_array_equal(chains["random"], chains["round_robin"])
    assert (chains["random"][0] != chains["random"][1]).any()
    assert chains["random"].mean() > 2 * chains["restless"].mean()


def test_intervals_round_trip_through_a_file(file):
    path = file("client,start,end\n1,0,5\n0,2.5,9\n")
    intervals = Intervals(path=path, period=9.0)
    config = BASE.replace(availability_trace=intervals, num_clients=2, num_selected=1)
    assert config_file.loads(config_file.dumps(config)) == config
    there = step(intervals.loaded(), np.float32(0), 2)
    np.testing.assert_array_equal(there, [False, True])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("client,begin,end\n0,1,2\n", r"must have the header client,start,end"),
        (
            "client,start,end\n0,3,2\n",
            r"line 2: start = 3 s, end = 2 s: must satisfy 0 <= start < end < inf",
        ),
        ("client,start,end\n0,-1,2\n", r"line 2: start = -1 s, end = 2 s"),
        ("client,start,end\n0,0,inf\n", r"start = 0 s, end = inf s"),
        ("client,start,end\n0,1700000000,1700000010\n", r"start = 1700000000 s: must be <= "),
        (f"client,start,end\n{'a' * 140_000},1,2\n", r"must be a CSV file in UTF-8 \(field larger"),
        (
            "client,start,end\n0,one,2\n",
            r"line 2, '0,one,2': must be a client number or name, foll",
        ),
        ("client,start,end\n0,1\n", r"line 2, '0,1': must have 3 cells"),
        ("client,start,end\n1,1,2\n", r"has no interval for client 0"),
        ("client,start,end\n", r"has no intervals"),
        ("", r"must have the header client,start,end"),
        ("client,start,end\n0,1,2\n", r"has intervals for 1 clients, but num_clients = 12"),
    ],
)
def test_invalid_intervals_file_is_refused_in_one_line(content, message, file):
    path = file(content)
    with pytest.raises(ConfigError, match=message) as caught:
        simulate(BASE.replace(availability_trace=Intervals(path=path)), KEY)
    assert "\n" not in str(caught.value)


def test_missing_or_changed_intervals_file_is_refused(file):
    with pytest.raises(
        ConfigError, match=r"availability_trace.path = 'nowhere.csv': cannot be read"
    ):
        simulate(BASE.replace(availability_trace=Intervals(path="nowhere.csv")), KEY)
    with pytest.raises(ConfigError, match=r"availability_trace.path = '': must be a CSV file"):
        simulate(BASE.replace(availability_trace=Intervals()), KEY)
    path = file("client,start,end\n0,0,1\n")
    kept = Intervals(path=path).loaded()
    file("client,start,end\n0,0,2\n")
    with pytest.raises(ConfigError, match=r"availability_trace.digest = .*The file has changed"):
        simulate(BASE.replace(availability_trace=kept, num_clients=1, num_selected=1), KEY)
