"""Rows of a result for loggers: CSV, TensorBoard and custom ones."""

import csv
import sys

import numpy as np
import pytest

from pause_jax.analysis import events
from pause_jax.base.struct import ConfigError
from tests.support.results import made


@pytest.fixture
def result():
    found = made({"a": None, "b/c": None}, seeds=2)
    found["played"][1, 1, 15:] = False  # ended by the clock
    found["max_spent"][0] = np.inf
    found["own"] = (("config", "seed", "round"), np.ones((2, 2, 20)))
    return found


def test_each_played_round_has_a_row(result):
    rows = list(events.rows(result))
    assert len(rows) == 3 * 20 + 15
    assert rows[0][:3] == ("a", 0, 1)
    one = next(row for row in rows if row[:3] == ("b/c", 1, 10))
    run = result.sel(config="b/c", seed=1)
    assert one.seconds == run.clock.sel(round=10)
    assert one.values["test_accuracy"] == run.test_accuracy.sel(eval_round=10)
    assert one.values["latency"] == run.latency.sel(round=10)
    assert one.values["own"] == 1


def test_rows_have_accuracy_only_if_evaluated_and_no_infinity(result):
    evaluated = {row.round for row in events.rows(result) if "test_accuracy" in row.values}
    assert evaluated == {5, 10, 15, 20}
    assert {row.config for row in events.rows(result) if "max_spent" in row.values} == {"b/c"}


def test_csv_contains_all_rows(result, tmp_path):
    with events.write_csv(result, tmp_path).open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 75
    assert set(lines[0]) >= {"config", "seed", "round", "seconds", "test_accuracy", "own"}
    assert lines[0]["test_accuracy"] == ""
    expected = result.test_accuracy.sel(config="a", seed=0, eval_round=5)
    assert float(lines[4]["test_accuracy"]) == pytest.approx(float(expected), rel=1e-6)


def test_tensorboard_has_rounds_and_simulated_seconds(result, tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    home = events.write_tensorboard(result, tmp_path)
    runs = sorted(str(path.relative_to(home)) for path in home.glob("*/*"))
    assert runs == ["00-a/seed-0", "00-a/seed-1", "01-b_c/seed-0", "01-b_c/seed-1"]
    (file,) = (home / "01-b_c/seed-1").iterdir()
    found = {}
    content = file.read_bytes()
    while content:  # a record: its length in 8 bytes, 4 of a checksum, itself, 4 of a checksum
        length = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        for value in event.summary.value:
            found[value.tag, event.step] = event.wall_time, value.simple_value
    run = result.sel(config="b/c", seed=1)
    seconds, accuracy = found["test_accuracy", 10]
    assert seconds == pytest.approx(float(run.clock.sel(round=10)))
    assert accuracy == pytest.approx(float(run.test_accuracy.sel(eval_round=10)))
    assert max(step for _, step in found) == 15


def test_missing_package_is_reported(monkeypatch, result, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"pip install 'pause_jax\[tensorboard\]'"):
        events.write_tensorboard(result, tmp_path)
