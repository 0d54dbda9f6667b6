"""The guide to production runs as it stands there; its last two blocks do in tests/flower."""

import pathlib
import re
import shlex

import jax
import numpy as np
import pytest

from pause_jax import config_file
from pause_jax.deploy.selector import Selector
from pause_jax.world.latency import LogNormal, Traces
from tests.support.command import run

pytestmark = pytest.mark.slow

GUIDE = (
    pathlib.Path(__file__).parents[2] / "docs" / "guides" / "from_fleet_to_production.md"
).read_text()
# As it stands there it takes minutes.
SMALL = "--set learning.model=linear --set learning.optimizer=sgd --set track_regret=false"
SMALLER = {
    "pause,pause_thompson,pause_discounted,random": "pause_thompson,random",
    "--seeds 5": f"--seeds 2 --rounds 10 --no-figures {SMALL}",
    "--budget 32": "--budget 4 --seeds 1 --width 4",
    "> mine.toml": f"--set num_rounds=10 --set eval_every=5 {SMALL} > mine.toml",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """A folder with measurements of twenty clients, two of them in a server's state."""
    folder = tmp_path_factory.mktemp("guide")
    keys = jax.random.split(jax.random.key(0), 40)
    seconds = np.asarray(jax.vmap(lambda key: LogNormal().sample(key, 20))(keys))
    lines = ["client,seconds", *(f"{k},{s}" for row in seconds for k, s in enumerate(row))]
    (folder / "fleet.csv").write_text("\n".join(lines))
    (folder / "state").mkdir()
    (folder / "state" / "fleet.csv").write_text("\n".join(lines[:301]))
    return folder


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_its_commands_run_and_what_they_write_drives_a_selector(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert [line.split()[1] for line in commands] == ["fit", "show", "compare", "tune", "fit"]
    shorter = commands
    for words, fewer in SMALLER.items():
        assert sum(words in line for line in shorter) == 1, words
        shorter = [line.replace(words, fewer) for line in shorter]
    for line in shorter:
        command, _, target = line.partition(" > ")
        status, captured = run(*shlex.split(command)[1:]), capsys.readouterr()
        assert status == 0, f"{line}\n{captured.out}\n{captured.err}"
        if target:
            (folder / target).write_text(captured.out)
    (best,) = folder.glob("results/production*/best.toml")
    assert str(best.relative_to(folder)) in GUIDE
    config = config_file.load(best)
    began = config_file.load(folder / "mine.toml")
    assert isinstance(config.latency, Traces)
    assert config.latency.path == "fleet.csv"
    assert 0.1 <= float(config.reward.gamma) <= 100
    assert float(config.reward.gamma) != float(began.reward.gamma)
    choice = Selector(config, jax.random.key(0)).ask()
    assert len(choice.clients) == 5
