"""The Flower example of the guide to servers."""

from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pause_jax import presets
from tests.flower.local import LocalGrid, nodes
from tests.support.pages import block


def test_readme_server_and_client_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    example = block("docs/guides/own_server.md", "PauseStrategy(config")
    client, server = example.split("# In the main function")
    # On one machine each client needs a ledger of its own.
    assert '"budget.jsonl"' in client
    client = client.replace("budget.jsonl", "budget-{partition-id}.jsonl")
    config = presets.digits_small("pause_thompson")
    names: dict[str, Any] = {"jax": jax, "ClientApp": ClientApp, "config": config}
    exec(client, names)

    @names["app"].train()
    def train(message, context):
        trained = {"w": Array(message.content["arrays"]["w"].numpy() + np.float32(0.01))}
        content = {"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": 3})}
        return Message(RecordDict(content), reply_to=message)

    names["grid"] = LocalGrid(names["app"], nodes(*range(config.num_clients)))
    names["initial_arrays"] = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    assert "num_rounds=100" in server
    exec("#" + server.replace("num_rounds=100", "num_rounds=3"), names)
    played = names["strategy"].history
    assert [len(each.seconds) for each in played] == [config.num_selected] * 3
    assert (tmp_path / "state" / "selector.npz").is_file()
    assert len(list(tmp_path.glob("budget-*.jsonl"))) > config.num_selected
