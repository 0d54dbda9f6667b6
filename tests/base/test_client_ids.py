"""Ids of clients: natural order, one client everywhere, and names in what a run returns."""

import csv
import itertools

import jax
import numpy as np
import pytest

from pause_jax import ConfigError, Learning, SimConfig, simulate, sweep
from pause_jax.analysis import ledger_table
from pause_jax.base.client_ids import natural_order, numbered
from pause_jax.learning import Characters, Dataset, Files, Linear, Natural
from pause_jax.policies import Random
from pause_jax.privacy import NoPrivacy
from pause_jax.run.preflight import client_ids, prepare
from pause_jax.sweeps.plan import plan_sweep
from pause_jax.world.availability import Intervals
from pause_jax.world.latency import Traces

KEY = jax.random.key(0)
SIZES = np.arange(1, 13)


def data_of(ids) -> Dataset:
    """The k-th client has k + 1 samples."""
    owner = np.repeat(np.asarray(ids), SIZES[: len(ids)])
    x = np.random.default_rng(0).standard_normal((len(owner), 3))
    return Dataset.of(x, np.arange(len(x)) % 2, x, np.arange(len(x)) % 2, clients=owner)


def fleet(folder, ids, name="fleet.csv") -> Traces:
    """The k-th client of all takes k + 1 seconds; the file is in no order."""
    lines = [f"{each},{1.0 + place}" for place, each in enumerate(ids)]
    (folder / name).write_text("\n".join(["client,seconds", *reversed(lines), ""]))
    return Traces(path=str(folder / name))


def availability_trace(folder, ids) -> Intervals:
    lines = [f"{each},0,1000" for each in ids]
    (folder / "there.csv").write_text("\n".join(["client,start,end", *lines, ""]))
    return Intervals(path=str(folder / "there.csv"))


def config(num_clients, **changes) -> SimConfig:
    natural = Learning(model=Linear(), partition=Natural(), max_steps=1, batch_size=4)
    sizes = {"num_clients": num_clients, "num_selected": 1, "num_rounds": 8, "eval_every": 8}
    parts = {"policy": Random(), "privacy": NoPrivacy(), "learning": natural}
    return SimConfig(**{**sizes, **parts, **changes}, track_regret=False)


SITES = [f"site{k}" for k in range(12)]


# ---------------------------------------------------------------- numbers


def test_numbers_within_names_sort_by_value():
    texts = [str(k) for k in range(12)]
    for order in (texts, texts[::-1], sorted(texts)):
        ids, number = numbered("clients", np.asarray(order))
        assert ids == tuple(texts)
        np.testing.assert_array_equal(number, [int(each) for each in order])
    names = ["site1", "site2", "site9b", "site09c", "site10", "site10a", "site100", "town1"]
    for shuffled in itertools.islice(itertools.permutations(names), 0, 40000, 997):
        assert sorted(shuffled, key=natural_order) == names


def test_equal_numbers_are_one_client_in_any_form():
    for given in (
        [3, 10, 1],
        [3.0, 10.0, 1.0],
        ["3", "10", "1"],
        [b"3", b"10", b"1"],
        [3, "10", 1.0],
    ):
        ids, number = numbered("clients", np.asarray(given, dtype=object))
        assert ids == ("1", "3", "10")
        np.testing.assert_array_equal(number, [1, 2, 0])


@pytest.mark.parametrize("missing", [None, np.nan, -1, 1.5, "", "nan", "-1", np.inf])
def test_invalid_client_id_error_names_its_place(missing):
    clients = np.asarray([0, 1, 2, missing, 1, 0], dtype=object)
    for given in (clients, list(clients)):
        with pytest.raises(
            ConfigError, match=r"clients\[3\] = .*whole number >= 0 or a name"
        ) as error:
            Dataset.of(np.zeros((6, 2)), np.arange(6) % 2, clients=given)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"clients\[0\] = True"):
        Dataset.of(np.zeros((2, 2)), [0, 1], clients=[True, False])


def test_drawn_test_set_leaves_every_client_a_sample():
    owner = np.repeat(np.arange(20), 2)
    x = np.arange(40.0)[:, None]
    data = Dataset.of(x, owner % 2, clients=owner, test_share=0.6)
    assert data.client_ids == tuple(map(str, range(20)))
    kept = np.asarray(data.x_train)[:, 0].astype(int)
    np.testing.assert_array_equal(np.asarray(data.clients), owner[kept])
    assert set(owner[kept]) == set(range(20))
    rest = np.asarray(data.x_test)[:, 0].astype(int)
    assert sorted([*kept, *rest]) == list(range(40))
    # A draw that empties nobody is as it was.
    few = Dataset.of(x, owner % 2, clients=owner, test_share=0.05)
    drawn = np.sort(np.random.default_rng(0).permutation(40)[:2])
    np.testing.assert_array_equal(few.x_test[:, 0], drawn)
    with pytest.raises(ConfigError, match="one training sample per client"):
        Dataset.of(x, owner % 2, clients=np.arange(40))


# ---------------------------------------------------------------- one client everywhere


@pytest.mark.slow
@pytest.mark.parametrize("ids", [SITES, [str(k) for k in range(12)]])
def test_data_and_latencies_match_by_client_id(tmp_path, ids):
    number = len(ids)
    run = config(
        number, latency=fleet(tmp_path, ids), availability_trace=availability_trace(tmp_path, ids)
    )
    result = jax.device_get(simulate(run, KEY, data_of(ids)))
    np.testing.assert_array_equal(result.data_size, SIZES[:number])
    np.testing.assert_allclose(result.latency, 1.0 + result.clients[:, 0])
    assert len(set(result.clients[:, 0].tolist())) > 3
    # Clients that are called by their numbers have no other names.
    named = () if ids[0] == "0" else tuple(map(str, ids))
    assert result.client_ids == named


@pytest.mark.parametrize(
    ("of_data", "of_fleet", "words"),
    [
        (
            range(11),
            [*range(5), *range(6, 13)],
            r"no line for these clients: '5', and has clients that .* does not have: '11', '12'",
        ),
        ([*range(2), *range(3, 12)], range(12), r"has clients that the data does not have: '2'"),
        (SITES, range(12), r"no line for these clients: 'site0', .* and 7 more, and has .*: '0', "),
        (SITES[:3], ["site1", "site2", "site3"], "'site0', and has clients that .*: 'site3'"),
    ],
)
def test_different_client_ids_are_refused(tmp_path, of_data, of_fleet, words):
    data = data_of(list(of_data))
    run = config(len(of_data), latency=fleet(tmp_path, of_fleet))
    with pytest.raises(ConfigError, match=words) as error:
        prepare(run, data)
    assert str(error.value).startswith("latency.path = ")
    assert "\n" not in str(error.value)
    there = config(len(of_data), availability_trace=availability_trace(tmp_path, of_fleet))
    with pytest.raises(ConfigError, match=words) as error:
        prepare(there, data)
    assert str(error.value).startswith("availability_trace.path = ")


def test_fleet_files_must_have_same_clients(tmp_path):
    bandit = config(3, learning=None, latency=fleet(tmp_path, "abc"))
    prepare(bandit.replace(availability_trace=availability_trace(tmp_path, "abcd")))
    with pytest.raises(
        ConfigError, match=r"availability_trace.path = .*no line for these clients: 'b'.* 'd'"
    ):
        prepare(bandit.replace(availability_trace=availability_trace(tmp_path, "acd")))


def test_numbers_with_gaps_require_data_with_same_ids(tmp_path):
    ids = [1, 2, 4]
    run = config(3, latency=fleet(tmp_path, ids))
    prepare(run, data_of(ids))
    for other in (
        run.replace(learning=None),
        run.override({"learning.partition": Learning().partition}),
    ):
        with pytest.raises(
            ConfigError, match=r"has no line for client 0\. .* without gaps, or use"
        ):
            prepare(other, None if other.learning is None else data_of(ids))
    with pytest.raises(ConfigError, match="Client 0 has no training samples"):
        prepare(config(5), data_of(ids))


def test_drawn_clients_are_refused_with_file_of_named_clients(tmp_path):
    run = config(4, latency=fleet(tmp_path, SITES))
    with pytest.raises(ConfigError, match=r"run draws .* 12 clients.*Set num_clients = 12"):
        prepare(run, data_of(SITES))
    prepare(config(4), data_of(SITES))
    # Topics of a text are no devices: any fleet may have them.
    text = run.override({"learning.data": Characters(length=24)})
    assert text.learning.data.load().client_ids is None


def test_folder_names_clients_by_files(tmp_path):
    for k in (10, 2, 0):
        x = np.full((k + 1, 3), float(k))
        np.savez(tmp_path / f"site{k}.npz", x=x, y=np.arange(k + 1) % 2)
    np.savez(tmp_path / "test.npz", x=np.zeros((2, 3)), y=[0, 1])
    data = Files(path=str(tmp_path)).load()
    assert data.client_ids == ("site0", "site2", "site10")
    np.testing.assert_array_equal(np.bincount(data.clients), [1, 3, 11])
    np.testing.assert_array_equal(data.x_train[:, 0], np.repeat([0, 2, 10], [1, 3, 11]))
    assert len(data.x_test) == 2


# ---------------------------------------------------------------- what a run returns


@pytest.mark.nightly
def test_a_sweep_and_its_ledger_name_clients(tmp_path):
    names = ["b, c", "a10", "a9"]
    run = config(3, learning=None, num_rounds=3, latency=Traces.of([[1.0], [2.0], [3.0]]))
    quoted = [f'"{each}"' for each in names]
    named = run.replace(latency=fleet(tmp_path, quoted))
    keys = jax.random.split(KEY, 2)
    plain = sweep(run, keys, progress=False)
    assert "client_id" not in plain.coords
    both = sweep({"named": named, "plain": run}, keys, progress=False, store=tmp_path / "store")
    np.testing.assert_array_equal(both.client_id.sel(config="named"), ["a9", "a10", "b, c"])
    np.testing.assert_array_equal(both.client_id.sel(config="plain"), ["0", "1", "2"])
    assert both.client_id.dims == ("config", "client")
    again = sweep({"named": named, "plain": run}, keys, progress=False, store=tmp_path / "store")
    np.testing.assert_array_equal(again.client_id, both.client_id)
    alone = both.sel(config=["named"])
    ledger_table.save(ledger_table.ledgers(alone), tmp_path / "ledger.csv")
    with (tmp_path / "ledger.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["client_id"] for row in rows] == ["a9", "a10", "b, c"] * 2
    seconds = {row["client_id"]: 1.0 + names.index(row["client_id"]) for row in rows}
    one = both.sel(config="named", seed=0)
    by_id = one.client_id.values[one.clients.values[:, 0]]
    np.testing.assert_allclose(one.latency, [seconds[each] for each in by_id])


def test_sweep_of_one_fleet_has_one_id_per_client(tmp_path):
    run = config(3, latency=fleet(tmp_path, SITES[:3]))
    (prepared,) = plan_sweep(run, KEY, data=data_of(SITES[:3])).configs
    assert client_ids(prepared.config, prepared.data) == tuple(SITES[:3])
    bandit = run.replace(learning=None, num_rounds=3)
    swept = sweep({"a": bandit, "b": bandit.replace(num_rounds=2)}, KEY, progress=False)
    assert swept.client_id.dims == ("client",)
    assert swept.client_id.values.tolist() == SITES[:3]
