"""The pieces of a day with an accelerator, where a machine with one has fewer packages."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import typer

from benchmarks import accelerator, accelerator_steps, data_parts
from benchmarks.accelerator_steps import LINES, PIECES, Piece, Setting, Step
from pause_jax.learning import Dataset

ROOT = pathlib.Path(__file__).parent.parent
# What a machine with an accelerator may lack.
MISSING = ("h5netcdf", "h5py", "tensorflow_datasets", "array_record")
PROGRAM = """
import pathlib, socket, sys

for name in {missing!r}:
    sys.modules[name] = None  # as if it were not installed


def refuse(*_, **__):
    raise OSError("no network")


socket.socket.connect = socket.getaddrinfo = refuse
from benchmarks import device_choices
from benchmarks.accelerator import take
from benchmarks.accelerator_steps import PIECES, Setting
from pause_jax import presets
from pause_jax.learning import Linear
from pause_jax.privacy import NoPrivacy

device_choices.PRODUCTS = 1  # nobody reads their rate
small = presets.digits_small().replace(track_regret=False, privacy=NoPrivacy())
small = small.override({{"learning.model": Linear()}})
presets.digits_small = presets.PRESETS["digits_small"] = lambda: small
for piece in PIECES:
    take(piece, Setting(pathlib.Path({out!r}), None, True))
"""


@pytest.mark.nightly
def test_every_piece_runs_without_network_and_the_missing_packages(tmp_path):
    program = PROGRAM.format(missing=MISSING, out=str(tmp_path))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PAUSE_JAX_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = accelerator_steps.ended(tmp_path)
    assert [line["piece"] for line in lines if "step" not in line] == list(PIECES)
    steps = [line for line in lines if "step" in line]
    assert {line["piece"] for line in steps} == set(PIECES)
    assert not [line for line in steps if "error" in line]
    for line in steps:
        if line["piece"] == "cohorts":
            assert line["found"]["equal_rounds"] == line["found"]["rounds"]
        if line["piece"] == "precision":
            assert max(line["found"].values()) < 1e-5
        if line["piece"] in ("speed", "peers") and line["step"] == "tiny":
            assert all(float(text.split(" s")[0]) > 0 for text in line["found"].values())
        if line["piece"] in ("figures", "resnet"):
            assert line["found"]["rounds"] == 2


def planned(names: str, measure):
    return Piece(lambda setting: iter([Step(name, measure(name, setting)) for name in names]))


def test_a_piece_goes_on_where_it_stopped(tmp_path, monkeypatch):
    taken = []

    def measure(name, setting):
        def found():
            taken.append(name)
            if name == "c" and len(taken) == 3:
                raise KeyboardInterrupt
            if name == "b":
                raise ValueError("two\nlines")
            return {"value": 1.0, "clients": [1, 2]}

        return found

    monkeypatch.setitem(PIECES, "mine", planned("abcd", measure))
    setting = Setting(tmp_path, None, True)
    with pytest.raises(KeyboardInterrupt):
        accelerator.take("mine", setting)
    with (tmp_path / LINES).open("a") as file:
        file.write('{"piece": "mine", "st')  # stopped while it wrote
    accelerator.take("mine", setting)
    assert taken == ["a", "b", "c", "c", "d"]
    lines = accelerator_steps.ended(tmp_path)
    assert [line.get("step") for line in lines] == ["a", "b", "c", "d", None]
    rows = accelerator.table(lines).splitlines()[2:]
    assert [row.split(" | ")[-1] for row in rows] == [
        *("value: 1 |", "ValueError: two |", "value: 1 |", "value: 1 |")
    ]


def test_cohorts_that_differ_are_seen():
    def measure():
        return {"clients": [[2, 1], [4, 3], [0, 2]], "seconds": 5.0}

    same = {"clients": [[1, 2], [3, 4], [2, 0]], "seconds": 4.0}  # their order means nothing
    assert accelerator_steps._beside(same, measure) == {
        "equal_rounds": 3,
        "rounds": 3,
        "seconds_apart": 1.0,
    }
    other = {"clients": [[2, 1], [3, 5], [2, 0]], "seconds": 5.0}
    found = accelerator_steps._beside(other, measure)
    assert (found["equal_rounds"], found["first_other_round"]) == (2, 2)


def test_a_crash_costs_one_step_and_time_ends_a_run(tmp_path, monkeypatch, capsys):
    program = """
import os, pathlib, sys, time
out = pathlib.Path(sys.argv[1])
steps = (out / "lines.jsonl").read_text() if (out / "lines.jsonl").exists() else ""
if "bad" not in steps:
    (out / "current.txt").write_text("bad")
    os.abort()
time.sleep(60)
"""
    monkeypatch.setattr(accelerator, "PIECES", {"mine": Piece(lambda setting: iter(()))})
    monkeypatch.setattr(
        accelerator, "command_of", lambda *_, **__: [sys.executable, "-c", program, str(tmp_path)]
    )
    accelerator.main(out=tmp_path, minutes=0.05)
    assert capsys.readouterr().out.strip().endswith("start it again to go on")
    (line,) = accelerator_steps.ended(tmp_path)
    assert (line["step"], line["error"][:38]) == ("bad", "ended the process with status -6; see ")
    with pytest.raises(typer.BadParameter, match="'yours': must be one of mine"):
        accelerator.main(out=tmp_path, only="yours")


def test_a_data_set_comes_back_from_its_parts(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (130, 4, 4, 1), np.uint8), np.arange(130, dtype=np.int32) % 10
    data = Dataset.of(x[:100], y[:100], x[100:], y[100:])
    paths = data_parts.write("mine", data, tmp_path, most=220)
    assert len(paths) == 12
    back = data_parts.read("mine", tmp_path)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(back, name), getattr(data, name))
    assert (back.num_classes, back.pixel_max) == (data.num_classes, data.pixel_max)
    paths[3].unlink()
    assert data_parts.read("mine", tmp_path) is None
    assert data_parts.read("yours", tmp_path) is None
