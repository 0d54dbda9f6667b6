"""Fits to a fleet's measurements, tests for drift and correlation, traces and changing fleets."""

import functools
import io

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from pause_jax import ConfigError, SimConfig, config_file, simulate, sweep
from pause_jax.analysis import fleet
from pause_jax.cli.fit import sentences
from pause_jax.policies import DiscountedUcb, Pause, Selection, named
from pause_jax.world.latency import (
    LogNormal,
    Pareto,
    ShiftedExponential,
    Switching,
    Traces,
    TwoGroups,
)
from pause_jax.world.latency.measured import Measured, parse
from tests.support.command import run
from tests.support.network import context, observation

pytestmark = pytest.mark.slow

LOW = 1e-3
MODELS = {
    "lognormal": LogNormal(min_latency=LOW, sigma=0.5),
    "shifted_exponential": ShiftedExponential(min_latency=LOW, straggling=0.7),
    "pareto": Pareto(min_latency=LOW, shape=3.0),
    "normal": TwoGroups(min_latency=LOW, fast_start=0.3),
}


@functools.partial(jax.jit, static_argnums=3)
def drawn(model, keys, numbers, num_clients):
    return jax.vmap(lambda key, t: model.at(key, t, num_clients))(keys, numbers)


def dropped(model, key, rounds, num_clients):
    """[rounds, clients]"""
    of_round = jax.vmap(lambda t: model.dropped(key, t, num_clients))
    return np.asarray(jax.jit(of_round)(np.arange(1, rounds + 1)))


def seconds_of(model, num_clients=20, rounds=60, seed=0):
    """[rounds, clients]"""
    keys = jax.random.split(jax.random.key(seed), rounds)
    return np.asarray(drawn(model, keys, np.arange(1, rounds + 1), num_clients), float)


def measured(seconds) -> Measured:
    rounds, clients = seconds.shape
    return Measured(
        np.tile(np.arange(clients), rounds), seconds.ravel(),
        np.repeat(np.arange(rounds), clients).astype(float),
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_fit_finds_the_true_distribution_and_parameters_within_their_errors(name):
    model = MODELS[name]
    off: dict[str, list[float]] = {}
    for seed in range(40):
        law, *_ = fleet.fit(measured(seconds_of(model, seed=seed))).laws
        assert law.name == name
        for word, found in law.parameters.items():
            one = (found.value - float(getattr(model, word))) / found.error
            off.setdefault(word, []).append(one)
    assert len(off) == (1 if name == "normal" else 3)
    for word, z in off.items():
        # Mean and spread of 40 standard normals; errors half or twice as large would show.
        assert abs(np.mean(z)) < 0.6, word
        assert 0.65 < np.std(z) < 1.5, word


def test_unevenly_spaced_scales_have_larger_errors():
    noise, errors = np.random.default_rng(1).standard_normal((50, 20)), []
    for scale in (np.geomspace(0.1, 1, 20), np.where(np.arange(20) < 10, 0.1, 1.0)):
        rows = scale * np.exp(0.1 * noise)
        law = next(x for x in fleet.fitted(list(rows.T)) if x.name == "lognormal")
        errors.append(law.parameters["fastest"].error / law.parameters["fastest"].value)
    assert errors[1] > 5 * errors[0]


def a_fleet(law, rng, clients, times, fastest=0.1, slowest=1.0):
    """[times, clients], of a law and its shape, in NumPy."""
    name, shape = law
    scale, size = np.geomspace(fastest, slowest, clients), (times, clients)
    if name == "normal":
        return scale + 0.3 + shape * rng.standard_normal(size)
    if name == "lognormal":
        return scale * np.exp(shape * rng.standard_normal(size))
    above = rng.exponential(size=size)
    return scale * ((1 + shape * above) if name == "shifted_exponential" else np.exp(above / shape))


LAWS = [
    ("lognormal", 0.5), ("lognormal", 0.2), ("shifted_exponential", 0.3), ("pareto", 5.0),
    ("normal", 0.05),
]  # fmt: skip


def called(law, times, clients=30, fleets=40, **ends):
    """How many fleets are called by the right law, decided for it, decided for a wrong one."""
    rng, counts = np.random.default_rng(times), np.zeros(3, int)
    for _ in range(fleets):
        found = fleet.fitted(list(a_fleet(law, rng, clients, times, **ends).T))
        right, decided = found[0].name == law[0], not fleet.rivals(found)
        counts += [right, right and decided, decided and not right]
    return counts.tolist()


@pytest.mark.nightly
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_few_measurements_do_not_select_a_wrong_distribution(law):
    for times in (3, 5, 8):
        assert called(law, times)[2] == 0, times
    right, decided, wrong = called(law, 20)
    assert (right >= 38, decided >= 20, wrong) == (True, True, 0)


def test_one_client_alone_does_not_decide_the_distribution():
    def law(name, *log_density):
        return fleet.Law(name, np.asarray(log_density, float), {}, np.ones(3))

    best = law("lognormal", 0, 0, 0)
    others = law("pareto", -50, -2, -2), law("normal", -50, -3, -3), law("c", -2, -2, -2)
    assert fleet.rivals((best, *others)) == ("pareto", "c")


@pytest.mark.parametrize(("times", "straggling"), [(2, 0.2), (7, 0.2), (40, 0.02)])
def test_log_density_integrates_over_client_scales(times, straggling):
    rng = np.random.default_rng(times)
    seconds = a_fleet(("shifted_exponential", straggling), rng, 3, times, 2.0, 5.0)
    found = {law.name: law.log_density for law in fleet.fitted(list(seconds.T))}
    logs, every = np.log(seconds), 3 * (times - 1)
    sigma, std = (np.sqrt(((x - x.mean(0)) ** 2).sum() / every) for x in (logs, seconds))
    tail = every / (logs - logs.min(0)).sum()

    def normal(x, mean):
        return stats.norm.logpdf(x, mean, std)

    def lognormal(x, scale):
        return stats.lognorm.logpdf(x, sigma, scale=scale)

    def pareto(x, scale):
        return stats.pareto.logpdf(x, tail, scale=scale)

    def integral(log_density, x, low, high, of_logarithm=True):
        """A trapezium sum over a client's scale; given one measurement, its mean over which."""
        grid = np.linspace(low, high, 4001)
        values = log_density(x[:, None], grid).sum(axis=0)
        if of_logarithm:
            values += np.log(x).mean() - np.log(grid)
        return np.log(np.trapezoid(np.exp(values - values.max()), grid)) + values.max()

    for k, x in enumerate(seconds.T):
        low, high = x.mean() * np.exp(np.array([-9, 9]) * sigma / times**0.5)
        wide = 9 * std / times**0.5
        assert found["lognormal"][k] == pytest.approx(integral(lognormal, x, low, high), abs=0.01)
        least = integral(pareto, x, x.min() * np.exp(-14 / times / tail), x.min())
        assert found["pareto"][k] == pytest.approx(least, abs=0.01)
        mean = integral(normal, x, x.mean() - wide, x.mean() + wide, of_logarithm=False)
        assert found["normal"][k] == pytest.approx(mean, abs=0.01)

    def worth(spread):
        def shifted(x, scale):
            return stats.expon.logpdf(x, scale, spread * scale)

        return sum(
            integral(shifted, x, x.min() * max(0.01, 1 - 14 * spread / times), x.min())
            for x in seconds.T
        )

    best = optimize.minimize_scalar(
        lambda x: -worth(x), bounds=(0.2 * straggling, 5 * straggling), method="bounded"
    )
    assert found["shifted_exponential"].sum() == pytest.approx(-best.fun, abs=0.02)


def drifting(kind, rng, clients=20, rounds=60):
    noise = rng.standard_normal((rounds, clients))
    if kind == "trend":
        noise[:, ::2] += np.linspace(0, 2, rounds)[:, None]
    if kind == "memory":
        for t in range(1, rounds):
            noise[t] = 0.4 * noise[t - 1] + np.sqrt(1 - 0.4**2) * noise[t]
    return np.exp(0.3 * noise + np.linspace(-1, 1, clients))


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("trend", {"drift"}),
        ("memory", {"correlation"}),
        ("nothing", set()),
    ],
)
def test_tests_detect_planted_drift_and_correlation(kind, seen):
    rng = np.random.default_rng(0)
    for _ in range(10):
        found = fleet.fit(measured(drifting(kind, rng)))
        tests = {name: getattr(found, name) for name in ("drift", "correlation")}
        suspected = {name for name, test in tests.items() if test.significant}
        # A memory of one round looks like a trend too, now and then.
        assert seen <= suspected
        if kind == "nothing":
            assert suspected == set()
        assert found.stationary == (not suspected)


def test_stationary_fleet_is_rejected_at_the_stated_level():
    rng = np.random.default_rng(1)
    tests: dict[str, list[fleet.Test]] = {"drift": [], "correlation": []}
    for _ in range(300):
        found = fleet.fit(measured(drifting("nothing", rng, clients=6, rounds=24)))
        for name, values in tests.items():
            values.append(getattr(found, name))
    for name, values in tests.items():
        # Uniform: 0.1 is the distance of which one in a hundred such samples is.
        assert stats.kstest([test.p for test in values], "uniform").statistic < 0.1, name
    figures = np.asarray([test.figure for test in tests["correlation"]])
    assert abs(figures.mean()) < 4 * figures.std() / np.sqrt(300)


def test_few_measurements_give_no_order_tests():
    found = fleet.fit(measured(seconds_of(MODELS["lognormal"], rounds=5)))
    assert np.isnan([found.drift.p, found.correlation.p]).all()
    assert found.stationary
    unordered = measured(seconds_of(MODELS["lognormal"]))._replace(when=None)
    assert not fleet.fit(unordered).ordered


def test_verdicts_state_significance_and_distribution():
    assert fleet.Test(0.1, 0.0014).verdict == "not significant at 0.001"
    assert fleet.Test(0.1, 0.0009).verdict == "significant at 0.001"
    rng = np.random.default_rng(0)
    few, many = (
        " ".join(sentences(fleet.fit(measured(a_fleet(("lognormal", 0.2), rng, 20, times)))))
        for times in (3, 60)
    )
    assert "Distribution: undecided between lognormal, " in few
    assert "Distribution: lognormal. All other distributions predict the measurements" in many
    assert "not significant at 0.001" in many


def text_of(seconds, when=True) -> str:
    lines = ["client,seconds,round" if when else "client,seconds"]
    for t, row in enumerate(seconds):
        lines += [f"{k},{x!r}" + f",{t}" * when for k, x in enumerate(row.tolist())]
    return "\n".join(lines) + "\n"


def test_fit_command_prints_and_writes_a_valid_model(tmp_path, capsys):
    path, out = tmp_path / "fleet.csv", tmp_path / "model.toml"
    path.write_text(text_of(seconds_of(MODELS["lognormal"])))
    assert run("fit", path, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "20 clients, 60 measurements each, 1200 in total" in printed
    assert "do not reject i.i.d. latencies" in printed
    assert "milliseconds" not in printed
    means, _, laws = printed.partition("distribution, best first")
    assert "Mean seconds per client: lowest 0." in means
    assert "fastest" not in means, "the name of a parameter"
    for words in ("lognormal", "sigma = 0.", "fastest = 0."):
        assert words in laws
    config = config_file.loads(out.read_text()).replace(
        learning=None, num_rounds=3, policy=named("random"), track_regret=False
    )
    fastest = seconds_of(MODELS["lognormal"]).mean(axis=0).min()
    assert config.latency.min_latency == pytest.approx(fastest / 2, rel=1e-5)
    assert isinstance(config.latency, LogNormal)
    simulate(config, jax.random.key(0))
    assert run("fit", path, "--out", out) == 2
    assert "exists. Choose another --out." in " ".join(capsys.readouterr().err.split())


def test_fit_command_warns_about_drift(file, capsys):
    path = file(text_of(seconds_of(Switching(min_latency=LOW, period=30))))
    assert run("fit", path) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "WARNING: the latencies are not independent and identically distributed" in printed
    assert "pause_discounted" in printed


def test_fit_command_names_the_file_if_no_model_fits(file, capsys):
    path = file(text_of(seconds_of(MODELS["normal"]), when=False))
    assert run("fit", path) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "latency.path=" in printed
    assert "assumed to be in time order, because the file has no round or time column" in printed


def test_bad_lines_are_dropped_and_counted_by_rule(monkeypatch, tmp_path, capsys):
    path = tmp_path / "fleet.csv"
    good = text_of(700 + seconds_of(MODELS["lognormal"], num_clients=3, rounds=9))
    bad = "0,5.0,3\n1,-1,20\n2,-1,21\n7,,1\nx,1\n"
    path.write_text(good + bad)
    with pytest.raises(ConfigError, match=r"line 29, '0,5\.0,3': an earlier line has the same"):
        parse(path.read_bytes(), str(path))
    found = parse(path.read_bytes(), str(path), drop_bad_lines=True)
    for have, wanted in zip(found[:3], parse(good.encode(), str(path))[:3], strict=True):
        np.testing.assert_array_equal(have, wanted)
    assert len(found.dropped) == 5
    monkeypatch.setenv("COLUMNS", "500")
    assert run("fit", path, "--drop-bad-lines") == 0
    printed = capsys.readouterr().out
    assert "Lines dropped: 1 (an earlier line has the same client and round" in printed
    assert "Lines dropped: 2 (seconds must be a float32 number > 0)." in printed
    assert "If the latencies are in milliseconds, divide the 'seconds' column by 1000." in printed


def test_unwritable_output_is_rejected_in_one_line(tmp_path, file, capsys):
    path = file(text_of(seconds_of(MODELS["lognormal"], num_clients=3, rounds=9)))
    for out in (tmp_path / "none" / "model.toml", tmp_path / ("x" * 300)):
        assert run("fit", path, "--out", out) == 2
        assert "cannot be written (" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,seconds\n0,1\n0,2\n", "only one client"),
        ("client,seconds\n0,1\n0,1\n1,2\n1,2\n", "no client has two different measurements"),
        ("client,seconds\n0,1\n0,2\n1,\n", "line 4, '1,': the client must have a latency"),
        ("client,round,seconds\n0,1,1\n0.0,1,2\n", "line 3, '0.0,1,2': an earlier line has the"),
        ("client,seconds,time\n0,1,tuesday\n", "'0,1,tuesday': must be client, seconds, time"),
        ("client,round,seconds\n0,1.5,0.1\n", "round must be a whole number"),
        (f"client,seconds\n0,{'1' * 131_073}\n", "field larger than field limit"),
        (
            "client,seconds\n" + "\n".join(f"{k},-1" for k in range(12)),
            "line 11, '9,-1': seconds must be a float32 number > 0; and 2 more. The header is "
            "'client,seconds'. Fix or remove these lines, or skip them with pause-jax fit",
        ),
    ],
)
def test_uninformative_file_is_rejected(tmp_path, file, capsys, text, words):
    path = file(text)
    assert run("fit", path) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert run("fit", tmp_path / "none.csv") == 2


# ---------------------------------------------------------------- fleets that change


def test_trace_is_played_in_order_and_repeats():
    rows = [[0.5, 0.1, 0.3], [1.0, 2.0]]
    model = Traces.of(rows).replace(order="played")
    config = SimConfig(
        num_clients=2, num_selected=2, num_rounds=7, learning=None, latency=model,
        policy=named("all"), track_regret=False,
    )  # fmt: skip
    result = simulate(config, jax.random.key(0))
    expected = [max(rows[0][t % 3], rows[1][t % 2]) for t in range(7)]
    np.testing.assert_allclose(result.latency, expected)

    @jax.jit
    def speeds(rounds):
        at_round = jax.vmap(lambda t: model.expected_speed_at(t, 2))(rounds)
        return at_round, *(each.expected_speed(2) for each in (model, Traces.of(rows)))

    found, *of_all = speeds(np.arange(1, 8))
    speed = [[0.05 / rows[0][t % 3], 0.05 / rows[1][t % 2]] for t in range(7)]
    np.testing.assert_allclose(found, speed, rtol=1e-6)
    np.testing.assert_array_equal(*of_all)


# Not in the order of the rounds.
LOG = """client,round,seconds
1,10,1.4
0,8,0.2
0,7,0.1
1,8,1.2
0,9,
0,11,0.5
"""


def test_log_rounds_stay_aligned_and_empty_cells_are_drop_outs(file):
    path = file(LOG)
    model = Traces(path=path, order="played")
    # Client 0 drops out in the third round and client 1 has no line in the first, third and last.
    seconds = np.array([[0.1, 1.2], [0.2, 1.2], [0.2, 1.2], [0.2, 1.4], [0.5, 1.4]])
    gone = np.arange(5) == 2
    key = jax.random.key(0)
    np.testing.assert_allclose(seconds_of(model, 2, 10), np.tile(seconds, (2, 1)), rtol=1e-6)
    expected = np.stack([np.tile(gone, 2), np.zeros(10)], axis=1)
    np.testing.assert_array_equal(dropped(model, key, 10, 2), expected)
    expected = jax.jit(model.expected_latency, static_argnums=0)(2)
    np.testing.assert_allclose(expected, seconds.mean(axis=0), rtol=1e-6)
    config = SimConfig(
        num_clients=2, num_selected=2, num_rounds=5, learning=None, latency=model,
        policy=named("all"), track_regret=False,
    )  # fmt: skip
    result = simulate(config, key)
    np.testing.assert_array_equal(result.in_time, np.stack([~gone, gone | True], axis=1))
    np.testing.assert_allclose(result.latency, seconds.max(axis=1), rtol=1e-6)
    # By times instead of rounds a client's lines follow one another.
    file(LOG.replace("round", "time"))
    np.testing.assert_allclose(
        seconds_of(model, 2, 3), [[0.1, 1.2], [0.2, 1.4], [0.2, 1.2]], rtol=1e-6
    )
    # The law is fitted to what was measured.
    answered = fleet.fit(parse(LOG.encode(), "log.csv"))
    np.testing.assert_array_equal(answered.measured, [3, 2])


def test_drop_outs_are_drawn_with_their_measured_frequency(file):
    path = file("client,seconds\n0,0.3\n0,\n0,0.1\n0,0.4\n1,0.5\n")
    model = Traces(path=path)
    keys = jax.random.split(jax.random.key(0), 4000)
    both = jax.vmap(lambda key: (model.dropped(key, 1, 2), model.sample(key, 2)))
    gone, seconds = jax.device_get(jax.jit(both)(keys))
    assert gone[:, 0].mean() == pytest.approx(0.25, abs=0.03)
    np.testing.assert_allclose(seconds[gone[:, 0], 0], 0.3)
    assert (seconds[~gone[:, 0], 0] == seconds.min()).mean() == pytest.approx(1 / 3, abs=0.04)
    assert not gone[:, 1].any()
    assert not Traces.of([[0.3], [0.5]]).drops


def test_rounds_that_are_unix_seconds_are_rejected(file):
    path = file("client,round,seconds\n0,0,0.1\n0,1700000000,0.1\n")
    with pytest.raises(ConfigError, match="rename the column to time"):
        Traces(path=path, order="played").loaded()


def test_dates_order_measurements_as_rounds_do(tmp_path):
    text = text_of(seconds_of(MODELS["lognormal"], num_clients=3, rounds=5))
    by_round = pd.read_csv(io.StringIO(text))
    start = pd.Timestamp("2026-01-01")
    times = start + pd.to_timedelta(by_round.pop("round"), unit="h")
    dated = by_round.assign(time=times).to_csv(index=False).encode()
    found = parse(dated, "dated.csv")
    np.testing.assert_array_equal(found.seconds, parse(text.encode(), "a.csv").seconds)
    assert np.ptp(found.when) == 4 * 3600
    wrong = by_round.assign(time=times, seconds=start).to_csv(index=False).encode()
    with pytest.raises(
        ConfigError, match=r"line 2.*must be client, seconds, time, all numeric except"
    ):
        parse(wrong, "dates.csv")


@pytest.mark.parametrize("num_clients", [10, 7])
def test_genie_knows_when_clients_swap_speeds(num_clients):
    model = Switching(sigma=0.3, period=5)
    still = LogNormal(sigma=0.3)
    step = round(0.5 * num_clients)

    @jax.jit
    def speeds(rounds):
        at_round = jax.vmap(lambda t: model.expected_speed_at(t, num_clients))
        return at_round(rounds), *(x.expected_speed(num_clients) for x in (model, still))

    found = speeds(np.arange(1, 5 * num_clients * 2 + 1))
    of_rounds, of_all, of_still = map(np.asarray, found)
    for t in (1, 5, 6, 10, 11, 16):
        moved = (t - 1) // 5 * step % num_clients
        expected = np.roll(of_still, -moved)
        np.testing.assert_array_equal(of_rounds[t - 1], expected)
        keys = jax.random.split(jax.random.key(t), 20_000)
        seconds = np.asarray(drawn(model, keys, np.full(20_000, t), num_clients))
        np.testing.assert_allclose((0.05 / seconds).mean(axis=0), expected, rtol=0.02)
    np.testing.assert_allclose(of_all, of_rounds.mean(axis=0), rtol=1e-5)


CHANGING = SimConfig(num_clients=12, num_selected=3, num_rounds=600, learning=None).override(
    {"reward.gamma": 0.0, "reward.alpha": 0.1}
)
POLICIES = {
    "pause": named("pause"),
    "genie": named("genie"),
    "as bold": Pause(index=DiscountedUcb(discount=1.0)),
    "discounted": named("pause_discounted"),
}


def played(latency, *names):
    """These policies in a world of 600 rounds, with 6 seeds."""
    configs = {name: CHANGING.replace(policy=POLICIES[name], latency=latency) for name in names}
    keys = jax.random.split(jax.random.key(0), 6)
    return sweep(configs, keys, record=("clients", "regret"), progress=False)


@functools.cache
def changing():
    return played(Switching(sigma=0.3, period=200), *POLICIES)


@pytest.mark.nightly
def test_genie_has_no_regret_in_a_changing_world():
    regret = changing().regret
    # Not exactly 0: it and the score compute the speeds of a round each for itself.
    np.testing.assert_allclose(regret.sel(config="genie"), 0, atol=1e-6)
    assert regret.sel(config="pause").sum() > 0.1


def test_discounted_index_has_less_regret_if_clients_change():
    rows = seconds_of(Switching(sigma=0.3, period=200), num_clients=12, rounds=600)
    assert not fleet.fit(measured(rows)).stationary
    last = changing().regret.sum("round")
    for name in ("pause", "as bold"):
        behind = last.sel(config=name) - last.sel(config="discounted")
        assert behind.mean() > 3 * behind.std() / np.sqrt(6), name
    # It is forgetting that costs, where they stay as they are.
    last = played(LogNormal(sigma=0.3), "as bold", "discounted").regret.sum("round")
    assert (last.sel(config="as bold") < last.sel(config="discounted")).all()


def test_discounted_index_matches_its_formula():
    index = DiscountedUcb(discount=0.9, exploration=0.5).build(context([1, 1, 1, 1], 2))
    value_of, updated = jax.jit(index.value), jax.jit(index.update)
    rng, state = np.random.default_rng(0), index.init()
    weight, total, rounds = np.zeros(4), np.zeros(4), 0.0
    for t in range(1, 30):
        value = np.asarray(value_of(jax.random.key(0), state, np.int32(t)))
        for k in range(4):
            if weight[k] == 0:
                assert value[k] == np.inf
                continue
            expected = total[k] / weight[k] + 0.5 * np.sqrt(3 * np.log(1 + rounds) / weight[k])
            np.testing.assert_allclose(value[k], expected, rtol=1e-4)
        clients, speed = rng.choice(3, 2, replace=False), rng.random(2).astype(np.float32)
        active = rng.random(2) < 0.8
        selection = Selection(clients, active.astype(np.float32))
        state = updated(state, selection, speed, observation(1 / speed))
        weight, total, rounds = 0.9 * weight, 0.9 * total, 0.9 * rounds + 1
        for k, x, here in zip(clients, speed, active, strict=True):
            weight[k], total[k] = weight[k] + here, total[k] + here * x
