"""The last two code blocks of the guide to production."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from pause_jax import config_file, presets
from pause_jax.world.latency import Traces
from tests.flower.local import LocalGrid, nodes

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "from_fleet_to_production.md").read_text()


def test_guide_server_and_clients_run_and_resume(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "production"
    folder.mkdir(parents=True)
    Path("fleet.csv").write_text("client,seconds\n" + "".join(f"{k},0.4\n" for k in range(20)))
    config = presets.digits_small("pause_thompson").replace(
        num_clients=20, num_rounds=2, latency=Traces(path="fleet.csv")
    )
    (folder / "best.toml").write_text(config_file.dumps(config))
    server, client = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    names: dict[str, Any] = {"initial_arrays": ArrayRecord({"w": Array(np.zeros(4, np.float32))})}
    exec(client.replace("budget.jsonl", "budget-{partition-id}.jsonl"), names)

    @names["app"].train()
    def train(message, context):
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"x": 1.0})}
        return Message(RecordDict(content), reply_to=message)

    for start in range(2):
        exec(server, names)
        names["main"](LocalGrid(names["app"], nodes(*range(20), first=100 * (start + 1))), None)
    assert len((tmp_path / "state" / "fleet.csv").read_text().splitlines()) == 1 + 4 * 5
