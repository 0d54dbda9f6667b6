"""What the README shows of a user's own world runs as it stands there."""

import pathlib
import re
from typing import Any

import jax
import numpy as np
import pytest

from pause_jax.latency import LogNormal

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()


@pytest.fixture
def own_world(monkeypatch, tmp_path):
    """A folder with arrays and measurements, as the example reads them."""
    from sklearn.datasets import load_digits

    monkeypatch.chdir(tmp_path)
    x, y = load_digits(return_X_y=True)
    np.savez("mine.npz", x=x / 16, y=y, client=np.arange(len(x)) % 25)
    keys = jax.random.split(jax.random.key(0), 30)
    seconds = np.asarray(jax.vmap(lambda key: LogNormal().sample(key, 20))(keys))
    lines = ["client,seconds", *(f"{k},{s}" for row in seconds for k, s in enumerate(row))]
    (tmp_path / "fleet.csv").write_text("\n".join(lines))
    return tmp_path


def test_own_arrays_own_module_own_latencies(own_world):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (block,) = [block for block in blocks if "FlaxModel.of(Net)" in block]
    lines = [line for line in block.splitlines() if line.strip()]
    assert len(lines) <= 25
    assert "SimConfig(num_clients=20," in block
    names: dict[str, Any] = {}
    exec(block.replace("num_clients=20,", "num_clients=20, num_rounds=20, eval_every=10,"), names)
    assert (own_world / "figures" / "accuracy_vs_seconds.png").stat().st_size > 10_000
    result = names["result"]
    assert result.config.values.tolist() == ["pause", "pause_thompson", "random", "fastest"]
    assert result.test_accuracy.isel(eval_round=-1).mean() > 0.2
    assert set(np.unique(result.data_size)) <= set(range(50, 70))


def test_the_selector_of_the_example_works(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (block,) = [block for block in blocks if "Selector(config" in block]
    exec(block, {})
    assert capsys.readouterr().out.startswith("1 [")
    assert (tmp_path / "selector.npz").is_file()
