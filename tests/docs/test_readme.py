"""What the README and the guides that grew out of it show runs as it stands there."""

import re

import jax
import numpy as np
import pytest

from pause_jax.analysis import plotting
from pause_jax.policies import NAMED
from pause_jax.privacy import MECHANISMS
from pause_jax.world.latency import LogNormal
from tests.support.pages import ROOT, blocks, play

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def own_world(monkeypatch, tmp_path):
    """A folder with arrays and measurements, as the example reads them."""
    from sklearn.datasets import load_digits

    monkeypatch.chdir(tmp_path)
    x, y = load_digits(return_X_y=True)
    np.savez("mine.npz", x=x / 16, y=y, client=np.arange(len(x)) % 20)
    keys = jax.random.split(jax.random.key(0), 30)
    seconds = np.asarray(jax.vmap(lambda key: LogNormal().sample(key, 20))(keys))
    lines = ["client,seconds", *(f"{k},{s}" for row in seconds for k, s in enumerate(row))]
    (tmp_path / "fleet.csv").write_text("\n".join(lines))
    return tmp_path


def test_it_takes_two_minutes_to_read_and_begins_with_the_picture():
    assert len(README.split()) < 1000
    assert README.index("docs/figures/demo.png") < README.index("## Two commands")
    assert len(blocks("README.md")) == 1
    (example,) = blocks("README.md")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("page", ["README.md", "docs/guides/from_python.md"])
def test_the_first_program_runs(page, capsys):
    small = '"learning.optimizer": "sgd", "learning.max_steps": 1, "track_regret": False'
    small = f".replace(num_rounds=10, eval_every=5).override({{{small}}})"
    smaller = {'(policy="pause")': f'(policy="pause"){small}'}
    smaller |= {"random.key(0), 5)": "random.key(0), 2)"}
    names = play(page, only="presets.digits_small", smaller=smaller)
    assert dict(names["data"].sizes)["seed"] == 2
    assert names["data"]["reward.gamma"].values.tolist() == [0.0, 1.0, 5.0, 20.0]
    assert "gamma = 20" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_laboratory_runs(capsys):
    smaller = {"num_rounds=2000": "num_rounds=200", "random.key(0), 8)": "random.key(0), 2)"}
    smaller["curves ="] = 'del configs["random"]\ncurves ='  # a program less to compile
    play("docs/guides/laboratories.md", smaller=smaller)
    assert "pause_thompson" in capsys.readouterr().out


def test_a_search_is_called_alone():
    names = play("docs/guides/command_line.md", only="search.exact")
    assert len(set(names["clients"].tolist())) == 5


@pytest.mark.nightly
def test_own_arrays_own_module_own_latencies(own_world, monkeypatch):
    monkeypatch.setattr(plotting, "_FORMATS", ("png",))  # tests/analysis/test_plotting.py has all
    page = "docs/guides/all_your_own.md"
    (block,) = blocks(page)
    lines = [line for line in block.splitlines() if line.strip()]
    assert len(lines) <= 25
    assert "SimConfig(num_clients=20," in block
    small = "num_clients=20, num_rounds=20, eval_every=10, track_regret=False,"
    smaller = {
        "num_clients=20,": small,
        "Learning(": "Learning(optimizer='sgd', learning_rate=0.2, ",
    }
    smaller['("pause", "pause_thompson", "random", "fastest")'] = '("pause_thompson", "random")'
    names = play(page, smaller=smaller)
    assert (own_world / "figures" / "accuracy_vs_seconds.png").stat().st_size > 10_000
    result = names["result"]
    assert result.config.values.tolist() == ["pause_thompson", "random"]
    assert result.test_accuracy.isel(eval_round=-1).mean() > 0.2
    assert set(np.unique(result.data_size)) <= set(range(55, 90))


def test_the_selector_of_the_example_works(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    play("docs/guides/own_server.md", only="Selector(config")
    assert capsys.readouterr().out.startswith("1 [")
    assert (tmp_path / "selector.npz").is_file()


def test_every_choice_is_in_the_table_and_every_name_counted():
    text = (ROOT / "docs" / "guides" / "from_python.md").read_text(encoding="utf-8")
    (count,) = re.findall(r"lists (\d+) named policies", text)
    assert int(count) == len(NAMED)
    assert f"[{count} named policies]" in (ROOT / "README.md").read_text(encoding="utf-8")
    privacy = next(line for line in text.splitlines() if line.startswith("| `privacy` |"))
    assert [m.__name__ for m in MECHANISMS if f"`{m.__name__}`" not in privacy] == []
    for policy in {type(policy).__name__ for policy in NAMED.values()}:
        assert f"`{policy}`" in text
