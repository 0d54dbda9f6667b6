"""The commands of the guide to public files, on small files of the same formats."""

import re
import shlex

import numpy as np
import pytest
import xarray as xr

from pause_jax import config_file
from pause_jax.world.latency import Network, Traces
from tests.support import public_files
from tests.support.command import run
from tests.support.pages import ROOT, play

pytestmark = pytest.mark.slow

PAGE = "docs/guides/public_files.md"
GUIDE = (ROOT / PAGE).read_text("utf-8")
COMMANDS = [
    line for block in re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    for line in block.splitlines()
]  # fmt: skip
SMALL = "--set learning.model=linear --set learning.optimizer=sgd --set track_regret=false"
FEWER = {
    "--seeds 2": f"--seeds 1 --rounds 10 --no-figures {SMALL}",
    "--budget 16 --seeds 3": f"--budget 3 --width 3 --seeds 1 --set num_rounds=5 {SMALL}",
    "--name femnist": "--name femnist --no-report",
    "clients=100": "clients=6",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with what a user downloads."""
    public_files.fedscale(tmp_path, clients=12)
    public_files.femnist(tmp_path / "femnist" / "data", writers=5, samples=10)
    (tmp_path / "log.csv").write_text("site,phone,took,round\nb,P1,1500,1\na,P2,20,2\na,P2,,3\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_its_commands_run_from_a_public_file_to_a_compared_and_tuned_policy(folder, capsys):
    assert [line.split()[1] for line in COMMANDS].count("import") == 3
    for line in COMMANDS:
        if "--preset phones" in line:  # tests/world/test_phones.py
            continue
        command = line.replace("--clients 100", "--clients 6")
        if "name femnist" in line:  # one program less to compile
            command = command.replace("pause,random", "random")
        for words, fewer in FEWER.items():
            command = command.replace(words, fewer)
        status, (out, err) = run(*shlex.split(command)[1:]), capsys.readouterr()
        assert status == 0, f"{line}\n{out}\n{err}"
        if "compare" in line:
            assert "random" in out
    data = xr.load_dataset(folder / "results" / "fedscale" / "data.nc")
    assert data.sizes["client"] == 6
    # At most times nobody or some are there, by the traces of the file.
    assert (data.clients >= 0).any()
    assert (data.clients < 0).any()
    data = xr.load_dataset(folder / "results" / "femnist" / "data.nc")
    assert set(map(str, data.client_id.values)) < {f"f{k:04d}_14" for k in range(5)}
    best = config_file.load(folder / "results" / "tuned" / "best.toml")
    assert best.num_clients == 6
    assert isinstance(best.latency, Network)
    assert best.latency.path == "fedscale/devices.csv"
    assert 1 <= best.reward.gamma <= 20
    with np.load(folder / "femnist_clients" / "clients.npz") as arrays:
        assert len(set(arrays["clients"].tolist())) == 4
        assert len(arrays["x_test"]) == 8


def test_its_code_writes_measured_seconds_of_another_table(folder):
    play(PAGE, only="read_csv")
    assert (folder / "fleet.csv").read_text().split() == [
        "client,seconds,round", "b,1.5,1", "a,0.02,2", "a,,3",
    ]  # fmt: skip
    measured = Traces(path="fleet.csv", min_latency=0.01).loaded()
    assert measured.client_ids == ("a", "b")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("import fedscal x --out o", "SOURCE = 'fedscal': must be one of fedscale, leaf"),
        ("import fedscale none --out o", "FILE = 'none': cannot be read (No such file"),
        ("import leaf log.csv --out o", "must be JSON with users"),
        ("import leaf log.csv --columns client --out o", "--columns client: must be OURS=THEIRS"),
        (
            "import leaf log.csv --ids a --clients 1 --out o",
            "--ids and --clients cannot be combined",
        ),
        (
            "import fedscale client_device_capacity --ids labels.npz --out o",
            "--ids labels.npz: must contain an array named 'clients'",
        ),
    ],
)
def test_what_cannot_be_imported_is_one_line(folder, capsys, command, said):
    np.savez(folder / "labels.npz", x=np.zeros((9, 2)), y=np.arange(9) % 2)
    assert run(*command.split()) == 2
    out, err = capsys.readouterr()
    text = " ".join(err.split())
    assert out == ""
    assert text.startswith("error: ")
    assert said in text
    assert not (folder / "o").exists()
