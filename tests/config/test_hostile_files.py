"""Damaged configs and tables that they name: values are read right, or refused in one line."""

import csv
import functools
import io
import re
import tomllib
from typing import Any

import numpy as np
import pytest

from pause_jax import ConfigError, config_file, presets
from pause_jax.config import validate
from pause_jax.world.availability import Intervals, intervals
from pause_jax.world.latency import Network, network
from pause_jax.world.latency.measured import parse
from tests.support.hostile import TOML, mutants, outcome

pytestmark = pytest.mark.slow

FLEET = b"client,round,seconds\n0,1,0.5\na7,1,1.25\n0,2,\na7,2,2e0\nsite b,1,0.75\n"
DATED = re.sub(rb"(?<=,)([12])(?=,)", rb"2026-01-0\1T10:00", FLEET.replace(b"round", b"time"))
INTERVALS = b"client,start,end\n0,0,30\nb,10,50.5\n0,40,60\n"
DEVICES = (
    b"device,share,sample_seconds,sample_spread,download_mbit,download_spread,upload_mbit,"
    b"upload_spread\nphone,0.75,0.02,0.2,20,0.5,5,0.5\ntablet,0.25,0.005,0.1,80,0.3,40,0.3\n"
)
ASYNCHRONOUS = """
policy = "random"
num_clients = 10
num_selected = 2
num_rounds = 30
learning = "none"
[latency]
name = "lognormal"
sigma = 0.5
[clock]
name = "asynchronous"
concurrency = 4
buffer = 2
[privacy]
name = "l1_vector"
budget = {name = "geometric", total_epsilon = 10.0, law = "tiers"}
"""


def column(content, name):
    """Cells of a column, of lines that are not blank."""
    text = io.StringIO(content.decode("utf-8-sig"), newline="")
    header, *lines = [row for row in csv.reader(text) if any(map(str.strip, row))]
    return [row[[word.strip() for word in header].index(name)].strip() for row in lines]


def numbers(cells):
    """Sorted float32 numbers; empty cells are -1."""
    return np.sort(np.asarray([cell or -1 for cell in cells], np.float64).astype(np.float32))


@pytest.mark.parametrize("content", [FLEET, DATED], ids=["rounds", "dates"])
def test_damaged_log_gives_true_seconds_or_is_refused(content):
    for damaged in mutants(content, 100, seed=1):
        found = outcome(functools.partial(parse, damaged, "hostile.csv"), "hostile.csv", damaged)
        if found is not None:
            seconds = np.where(np.isnan(found.seconds), -1, found.seconds).astype(np.float32)
            np.testing.assert_array_equal(np.sort(seconds), numbers(column(damaged, "seconds")))
            assert len(found.ids) == len(set(column(damaged, "client")))


def test_every_line_of_a_damaged_log_is_kept_or_counted_as_dropped():
    dropped = 0
    for damaged in mutants(FLEET, 100, seed=2):
        read = functools.partial(parse, damaged, "hostile.csv", drop_bad_lines=True)
        found = outcome(read, "hostile.csv", damaged)
        if found is not None:
            text = io.StringIO(damaged.decode("utf-8-sig"), newline="")
            lines = [row for row in csv.reader(text) if any(map(str.strip, row))]
            assert len(found.seconds) + len(found.dropped) == len(lines) - 1, damaged
            dropped += len(found.dropped)
    assert dropped > 50


@pytest.mark.parametrize("kind", ["intervals", "devices"])
def test_damaged_config_table_gives_true_numbers_or_is_refused(tmp_path, kind):
    path = tmp_path / "hostile.csv"
    read, content = {
        "intervals": (lambda: Intervals(path=str(path)).loaded(), INTERVALS),
        "devices": (lambda: Network(path=str(path)).loaded(), DEVICES),
    }[kind]
    for damaged in mutants(content, 100, seed=4):
        path.write_bytes(damaged)
        found: Any = outcome(read, path.name, damaged)
        if found is None:
            continue
        if kind == "intervals":
            times = intervals._TABLES[found.digest].times
            starts, name = times[times[..., 1] > 0][:, 0], "start"
        else:
            starts, name = network._TABLES[found.digest].median[:, 0], "sample_seconds"
        wanted = numbers(column(damaged, name))
        np.testing.assert_array_equal(np.sort(starts).astype(np.float32), wanted)


def leaves(table, path=""):
    """Values of nested tables by their paths."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


@pytest.mark.parametrize("base", ["digits_small", "phones", "asynchronous"])
def test_damaged_config_matches_its_file_or_is_refused(tmp_path, base):
    text = ASYNCHRONOUS
    if base != "asynchronous":
        text = config_file.dumps(presets.PRESETS[base]("pause"))
    path = tmp_path / "hostile.toml"
    accepted = 0

    def read():
        config = config_file.load(path)
        try:
            validate(config)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        return config

    for damaged in mutants(text.encode(), 120, seed=6, tokens=TOML, place=rb"(?<== )[^\n{]+"):
        path.write_bytes(damaged)
        config = outcome(read, path.name, damaged)
        if config is None:
            continue
        accepted += 1
        found = dict(leaves(config_file.to_dict(config)))
        for name, value in leaves(tomllib.loads(damaged.decode("utf-8-sig"))):
            said = found.get(name, found.get(f"{name}.name", "none"))
            number = isinstance(said, float) and isinstance(value, int | float)
            assert said == (float(str(np.float32(value))) if number else value), (name, damaged)
    assert accepted >= 5
