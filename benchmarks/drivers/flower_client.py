"""Client app of Flower, in a separate module that Ray's processes import by name."""

from __future__ import annotations

import functools

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from benchmarks.drivers.torch_models import Clients, build, train
from benchmarks.workloads import WORKLOADS, Workload, read_data, read_weights

client_app = ClientApp()


@functools.cache
def _loaded(name: str, data: str, weights: str) -> tuple[Workload, Clients, nn.Module]:
    """Load the workload, data and model that a process of Ray keeps for all clients."""
    workload = WORKLOADS[name]
    clients = Clients(workload, *read_data(data), channels_last=False)
    return workload, clients, build(workload, read_weights(weights))


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train one client from the weights in the message."""
    config = message.content["config"]
    workload, clients, model = _loaded(config["workload"], config["data"], config["weights"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model, workload, clients.epochs(config["client"]))
    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": workload.samples}),
    }
    return Message(content=RecordDict(reply), reply_to=message)
