"""The Flower code of the guides to servers and to production."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pause_jax import config_file, presets
from pause_jax.world.latency import Traces
from tests.flower.local import LocalGrid, nodes
from tests.support.pages import block, blocks


def train(message, context):
    """Return the model as it came."""
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 3})}
    return Message(RecordDict(content), reply_to=message)


def app_of(client: str, names: dict[str, Any]) -> ClientApp:
    """Run the code of a client, with a ledger for each client because all are on one machine."""
    assert '"budget.jsonl"' in client
    exec(client.replace("budget.jsonl", "budget-{partition-id}.jsonl"), names)
    names["app"].train()(train)
    names["initial_arrays"] = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    return names["app"]


def test_server_and_clients_of_the_guide_to_servers_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    client, server = block("docs/guides/own_server.md", "PauseStrategy(config").split(
        "# In the main function"
    )
    config = presets.digits_small("pause_thompson")
    names: dict[str, Any] = {"jax": jax, "ClientApp": ClientApp, "config": config}
    names["grid"] = LocalGrid(app_of(client, names), nodes(*range(config.num_clients)))
    assert "num_rounds=100" in server
    exec("#" + server.replace("num_rounds=100", "num_rounds=3"), names)
    played = names["strategy"].history
    assert [len(each.seconds) for each in played] == [config.num_selected] * 3
    assert (tmp_path / "state" / "selector.npz").is_file()
    assert len(list(tmp_path.glob("budget-*.jsonl"))) > config.num_selected


def test_server_and_clients_of_the_guide_to_production_run_and_resume(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "production"
    folder.mkdir(parents=True)
    Path("fleet.csv").write_text("client,seconds\n" + "".join(f"{k},0.4\n" for k in range(20)))
    config = presets.digits_small("pause_thompson").replace(
        num_clients=20, num_rounds=2, latency=Traces(path="fleet.csv")
    )
    (folder / "best.toml").write_text(config_file.dumps(config))
    server, client = blocks("docs/guides/from_fleet_to_production.md")
    names: dict[str, Any] = {}
    app = app_of(client, names)
    for start in range(2):
        exec(server, names)
        names["main"](LocalGrid(app, nodes(*range(20), first=100 * (start + 1))), None)
    assert len((tmp_path / "state" / "fleet.csv").read_text().splitlines()) == 1 + 4 * 5
