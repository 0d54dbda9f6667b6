"""Latencies drawn from measured seconds: the file, samples, means, and what a result says."""

import functools

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, SimConfig, config_file, simulate, sweep
from pause_jax.config import validate
from pause_jax.policies import Random
from pause_jax.privacy import NoPrivacy
from pause_jax.world.latency import Traces

pytestmark = pytest.mark.slow

# Of unequal number, in no order, with an entry below tau_min and a repeated one.
MEASURED = [[0.3, 0.2], [0.9], [0.04, 0.5, 0.07, 0.07], [1.5, 0.01, 0.02]]
K = len(MEASURED)


def lines(measured) -> str:
    """The text of a file, the last client first."""
    rows = [f"{k},{x!r}" for k, row in reversed(list(enumerate(measured))) for x in row]
    return "\n".join(["client,seconds", *rows, ""])


def bandit(latency, **changes) -> SimConfig:
    sizes = {"num_clients": K, "num_selected": 2, "num_rounds": 4}
    small = {"policy": Random(), "privacy": NoPrivacy(), "learning": None, "track_regret": False}
    return SimConfig(**{**sizes, **small, **changes}, latency=latency)


def drawn(model, rounds=4000, num_clients=K):
    keys = jax.random.split(jax.random.key(0), rounds)
    return np.asarray(samples(model.loaded(), keys, num_clients), float)


@functools.partial(jax.jit, static_argnums=2)
def samples(model, keys, num_clients):
    return jax.vmap(lambda key: model.sample(key, num_clients))(keys)


@functools.partial(jax.jit, static_argnums=1)
def means(model, num_clients):
    return model.expected_latency(num_clients), model.expected_speed(num_clients)


@pytest.mark.parametrize("low", [0.05, 0.001, 0.07, 0.3, 2.0])
def test_means_account_for_min_latency(low):
    latency, speed = means(Traces.of(MEASURED).replace(min_latency=low), K)
    cut = [np.maximum(low, row) for row in MEASURED]
    np.testing.assert_allclose(latency, [row.mean() for row in cut], rtol=1e-6)
    np.testing.assert_allclose(speed, [(low / row).mean() for row in cut], rtol=1e-6)


def test_mean_of_many_measurements_is_accurate():
    many = np.random.default_rng(0).lognormal(size=300_000)
    latency, speed = means(Traces.of([many]), 1)
    cut = np.maximum(np.float32(0.05), many)
    np.testing.assert_allclose(latency, [cut.mean()], rtol=2e-7)
    np.testing.assert_allclose(speed, [(0.05 / cut).mean()], rtol=2e-7)


def test_each_client_draws_its_own_measurements_equally_often(file):
    rounds = 4000
    seconds = drawn(Traces(path=file(lines(MEASURED)), min_latency=0.03), rounds)
    for k, row in enumerate(MEASURED):
        values, times = np.unique(np.maximum(0.03, row), return_counts=True)
        found, counts = np.unique(seconds[:, k].round(6), return_counts=True)
        np.testing.assert_allclose(found, values, rtol=1e-5)
        share = times / times.sum()
        assert (np.abs(counts / rounds - share) <= 5 * np.sqrt(share * (1 - share) / rounds)).all()


def test_clients_beyond_the_network_are_not_used(file):
    model = Traces(path=file(lines(MEASURED))).loaded()
    few, all_of_them = (np.asarray(means(model, number)[0]) for number in (2, K))
    np.testing.assert_array_equal(few, all_of_them[:2])
    np.testing.assert_allclose(drawn(model, 3, 1)[:, 0], 0.25, atol=0.051)


def test_arrays_and_file_give_the_same_model(file):
    model, arrays = Traces(path=file(lines(MEASURED))), Traces.of([np.array(m) for m in MEASURED])
    np.testing.assert_array_equal(drawn(model, 50), drawn(arrays, 50))
    assert arrays == Traces.of(MEASURED)
    assert arrays != Traces.of(MEASURED[:2])
    # What moves from one client to its neighbour is another table.
    assert Traces.of([[0.1], [0.2, 0.3]]) != Traces.of([[0.1, 0.2], [0.3]])


def test_run_records_its_file_and_refuses_a_changed_one(file):
    path = file(lines(MEASURED))
    result = simulate(bandit(Traces(path=path)), jax.random.key(0), record=("clock",))
    config = config_file.loads(config_file.dumps(result.config))
    assert isinstance(config.latency, Traces)
    assert config.latency.path == path
    assert len(config.latency.digest) == 64
    again = simulate(config, jax.random.key(0), record=("clock",))
    np.testing.assert_array_equal(again.clock, result.clock)

    # The same path with other content is another program, not the one that was compiled.
    file(lines([[2.0], [2.0], [2.0], [2.0]]))
    slow = simulate(bandit(Traces(path=path)), jax.random.key(0), record=("clock",))
    np.testing.assert_allclose(slow.clock, [2.0, 4.0, 6.0, 8.0])
    with pytest.raises(ConfigError, match=r"latency.digest = .*changed.*Set latency.digest = ''"):
        simulate(config, jax.random.key(0))


def test_a_sweep_takes_several_tables_and_a_swept_tau_min(file):
    keys = jax.random.split(jax.random.key(1), 2)
    configs = {
        "file": bandit(Traces(path=file(lines(MEASURED)))),
        "late": bandit(Traces(path=file(lines(MEASURED)), min_latency=0.4)),
        "arrays": bandit(Traces.of([[1.0]] * K)),
    }
    data = sweep(configs, keys, record=("clock",), progress=False)
    for name in ("file", "late"):
        single = simulate(configs[name], keys[1], record=("clock",))
        np.testing.assert_allclose(data.clock.sel(config=name, seed=1), single.clock, rtol=1e-6)
    np.testing.assert_allclose(data.clock.sel(config="arrays"), [[1.0, 2.0, 3.0, 4.0]] * 2)
    assert (np.diff(data.clock.sel(config="late"), axis=1) >= 0.4 - 1e-6).all()


BAD = [
    ("", ["line 1", "must have the columns client and seconds"]),
    ("client,time\n0,1\n", ["line 1, 'client,time'", "must have the columns"]),
    ("client,seconds,round,time\n", ["line 1", "must have the columns"]),
    ("client,seconds,round\n0,0.1,inf\n", ["line 2, '0,0.1,inf'", "round or time must be finite"]),
    ("client,seconds\n0,0.1\n1,fast\n", ["line 3, '1,fast'", "must be client, seconds"]),
    ("client,seconds\n0.5,0.1\n", ["line 2, '0.5,0.1'", "whole number"]),
    ("client,seconds\n,0.1\n", ["line 2, ',0.1'", "whole number >= 0 or a name"]),
    ("client,seconds\n0,0.1,0.2\n", ["line 2, '0,0.1,0.2'"]),
    ("client,seconds\n0,0.1\n\n0,-0.2\n", ["line 4, '0,-0.2'", "> 0"]),
    ("client,seconds\n0,0\n", ["line 2, '0,0'", "> 0"]),
    ("client,seconds\n0,nan\n", ["line 2, '0,nan'", "float32 number > 0"]),
    ("client,seconds\n0,1e39\n", ["line 2, '0,1e39'", "float32 number > 0"]),
    ("client,seconds\n-1,0.1\n", ["line 2, '-1,0.1'", "whole number >= 0"]),
    ("client,seconds\n", ["has no measurements"]),
    ("client,seconds\n0,0.1\n2,0.1\n", ["no measurement for client 1", "without gaps"]),
    ("client,seconds\n0,0.1\n1,0.1\n", ["for 2 clients", f"num_clients = {K}", "num_clients <= 2"]),
    ("\xff\xfe", ["line 1"]),
]


@pytest.mark.parametrize(("text", "words"), BAD, ids=[" ".join(words) for _, words in BAD])
def test_bad_file_error_names_the_line(file, text, words):
    path = file(text)
    with pytest.raises(ConfigError) as error:
        simulate(bandit(Traces(path=path)), jax.random.key(0))
    for word in (f"latency.path = {path!r}", *words):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_unnamed_or_binary_file_is_refused(tmp_path):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    for latency, words in (
        (Traces(path=str(tmp_path / "nowhere.csv")), r"nowhere\.csv': cannot be read \(No such"),
        (Traces(path=str(tmp_path)), "must be a regular file"),
        (Traces(path=str(binary)), "UTF-8"),
        (Traces(), "latency.path = ''.*client,seconds"),
        (Traces(digest="0" * 64), "arrays with this digest are not loaded"),
    ):
        with pytest.raises(ConfigError, match=words):
            validate(bandit(latency))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([], "seconds is empty"),
        ([[0.1], []], r"seconds\[1\] = \[\]"),
        ([[0.1, 0.0]], r"seconds\[0\].*> 0"),
        ([[np.nan]], "finite"),
        ([["slow"]], r"seconds\[0\] = \['slow'\]: must be one or more"),
    ],
)
def test_invalid_measurement_arrays_are_refused(seconds, words):
    with pytest.raises(ConfigError, match=words):
        Traces.of(seconds)


def test_path_is_relative_to_the_working_directory(file, tmp_path, monkeypatch):
    file("\ufeffclient, seconds\r\n0,0.5\r\n", "table.csv")
    monkeypatch.chdir(tmp_path)
    np.testing.assert_allclose(Traces(path="table.csv").expected_latency(1), [0.5])
    changed = config_file.changed(
        SimConfig(learning=None, num_clients=1, num_selected=1),
        ["latency=traces", "latency.path=table.csv"],
    )
    validate(changed)
