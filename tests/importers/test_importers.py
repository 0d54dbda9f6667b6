"""Public files of devices and states: what comes out is what stands in them, or one line."""

import csv
import os
import pickle

import numpy as np
import pytest

from pause_jax import ConfigError
from pause_jax.importers import fedscale, leaf
from pause_jax.importers.request import Request
from pause_jax.world.availability import Intervals
from pause_jax.world.latency import Network
from tests.support import public_files


def rows(imported, name):
    """Rows of a table without its headings."""
    return [list(row) for row in imported.tables[name]][1:]


def written(imported, folder):
    """Rows of each table, as dictionaries, by its file's name."""
    found = {}
    for path in imported.write(folder):
        with path.open(newline="") as file:
            found[path.name] = list(csv.DictReader(file))
    return found


def seconds(path, clients):
    """Median seconds of a round of 10 samples, 1 MB down and 0.5 MB up, by client."""
    model = Network(
        path=str(path), download_bytes=1e6, upload_bytes=5e5, samples=10.0, min_latency=1e-3
    ).loaded()
    return np.asarray(model._of_clients(clients)[0]).sum(axis=1)


def test_fedscale_clients_match_its_formula(tmp_path):
    public_files.fedscale(tmp_path)
    request = Request((tmp_path / "client_device_capacity", tmp_path / "client_behave_trace"))
    imported = fedscale.read(request)
    found = written(imported, tmp_path / "out")
    assert [row["device"] for row in found["devices.csv"]] == [f"fedscale_{k}" for k in range(1, 7)]
    # ClientMetadata.get_completion_time: 3 x ms a sample, and kbit / (kbit/s).
    wanted = [3 * 10 * 0.02 * k + (8e6 + 4e6) / (1e6 * k) for k in range(1, 7)]
    np.testing.assert_allclose(seconds(tmp_path / "out/devices.csv", 6), wanted, rtol=1e-5)
    # The fifth trace is never active: clients 5 and 6 have the first two again.
    starts = [(row["client"], float(row["start"])) for row in found["intervals.csv"]]
    assert [start for start in starts if start[1] > 10] == [
        *((str(k), 200.0 + k) for k in range(4)),
        # The fourth was observed for half of the time, and repeats.
        *(("3", 259_200.0 + start) for start in (10, 203)),
        *((str(k), 196.0 + k) for k in (4, 5)),
    ]
    trace = Intervals(path=str(tmp_path / "out/intervals.csv"), period=518_400.0).loaded()
    times = (5, 50, 150, 1.4e5, 2e5, 3e5, 518_450)
    here = [np.asarray(trace.step((), None, t, 6)[0]).sum() for t in times]
    assert here == [0, 6, 0, 6, 0, 1, 6]
    assert imported.notes == (
        "Skipped clients that are never active: 1 in client_behave_trace.",
        "Intervals repeat every 518400 s (period).",
    )


def test_a_sample_of_clients_is_drawn_by_the_seed(tmp_path):
    public_files.fedscale(tmp_path, clients=200)
    request = Request((tmp_path / "client_device_capacity",), clients=20)
    drawn = [
        [row[0] for row in rows(fedscale.read(request._replace(seed=seed)), "devices.csv")]
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 20
    assert len(rows(fedscale.read(request._replace(clients=201)), "devices.csv")) == 200


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("where", ["outside", "value", "key"])
def test_malicious_pickle_is_refused_without_execution(tmp_path, protocol, where):
    mark = tmp_path / "mark"
    evil = Malicious(os.mkdir, str(mark))
    entry = {"computation": 1.0, "communication": 1.0}
    content = {"outside": evil, "value": {1: entry | {"extra": evil}}, "key": {1: entry, evil: 2}}
    path = tmp_path / "client_device_capacity"
    path.write_bytes(pickle.dumps(content[where], protocol=protocol))
    with pytest.raises(ConfigError) as refused:
        fedscale.read(Request((path,)))
    assert not mark.exists()
    (line,) = str(refused.value).splitlines()
    assert f"{path}'" in line
    assert (
        f"of numbers, strings and containers ('it names {os.name}.mkdir'). No code was run." in line
    )
    # The same file makes the folder where pickle itself loads it: the test can fail.
    pickle.loads(path.read_bytes())
    assert mark.exists()


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"c__builtin__\neval\n(S'1'\ntR.", "__builtin__.eval"),
        (b"(ios\nsystem\n.", "os.system"),
        (pickle.dumps(np.float64(1)), "numpy"),
        (pickle.dumps(Request), "pause_jax"),
        (b"\x80\x02\x82\x01.", ""),
        (b"", ""),
        (pickle.dumps({1: {"computation": 1.0}})[:-9], ""),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", ""),
        (b"\x80\x02]" + b"(" * 10, ""),
    ],
)
def test_pickle_that_names_an_object_is_refused(tmp_path, content, name):
    path = tmp_path / "client_device_capacity"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        fedscale.read(Request((path,)))
    (line,) = str(refused.value).splitlines()
    assert "must be a complete pickle file" in line
    assert name in line


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ({}, "must be a dictionary of clients, each with computation"),
        ({1: {"computation": 1.0}}, "must be a dictionary of clients, each with computation"),
        ({7: {"computation": 0.0, "communication": 1.0}}, "7: computation and communication must"),
        ({7: {"computation": "1", "communication": 1.0}}, "7: computation and communication must"),
        ({7: {"computation": 1.0, "communication": float("nan")}}, "7: computation and commun"),
        (
            {1: {"computation": 1.0, "communication": 1.0}, (1, 2): 3},
            "an entry: computation and commun",
        ),
        ({3: {"active": [1], "inactive": [], "finish_time": 9}}, "3: inactive must have"),
        (
            {
                1: {"active": [1e-7], "inactive": [5e-7], "finish_time": 1e-6},
                2: {"active": [1], "inactive": [2], "finish_time": 1e6},
            },
            "repeating all traces for 1e+06 s needs",
        ),
        (
            {10**5000: {"computation": 1.0, "communication": 1.0}},
            "int of thousands of digits: comp",
        ),
        ({3: {"active": [1], "inactive": None, "finish_time": 9}}, "3: inactive must"),
    ],
)
def test_damaged_fedscale_devices_give_a_one_line_error(tmp_path, content, rule):
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(ConfigError) as refused:
        fedscale.read(Request((path,)))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"FILE = '{path}': {rule}")
    assert len(line) < 400


def test_existing_output_and_wrong_paths_are_refused(tmp_path):
    public_files.fedscale(tmp_path)
    path = tmp_path / "client_device_capacity"
    imported = fedscale.read(Request((path,)))
    imported.write(tmp_path / "out")
    with pytest.raises(
        ConfigError, match=r"^--out .*out: already contains devices\.csv\. Choose another"
    ):
        imported.write(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"^--out .*capacity: cannot be written \(File exists"):
        imported.write(path)
    with pytest.raises(ConfigError, match=r"^FILE = .*two': must be imported separately"):
        _ = Request((path, tmp_path / "two")).path
    with pytest.raises(ConfigError, match=r"must be a regular file, not a folder"):
        fedscale.read(Request((tmp_path,)))


def test_clients_get_ids_from_data_or_keep_theirs(tmp_path):
    public_files.fedscale(tmp_path)
    path, ids = tmp_path / "client_behave_trace", ("a1", "b2", "c3")
    named = fedscale.read(Request((path,), ids=ids))
    assert {row[0] for row in rows(named, "intervals.csv")} == set(ids)
    with pytest.raises(ConfigError, match=r"^--ids: has 5 clients, but the file has 4\."):
        fedscale.read(Request((path,), ids=tuple("abcde")))
    users = tmp_path / "users.json"
    public_files.leaf(users, {"a": {"x": [[0.5]], "y": [1]}})
    with pytest.raises(ConfigError, match=r"^--ids: must not be set, because this file"):
        leaf.read(Request((users,), ids=ids))
