"""What strategy and clients say to each other beside the model, and the names of it."""

from __future__ import annotations

import logging

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

LOG = logging.getLogger("flwr.pause_jax")

# In the configuration that a client gets.
ROUND = "server-round"
EPSILON = "pause-epsilon"  # also in its metrics: what the release spent
# In the metrics that a client returns.
PARTICIPATION = "pause-participation"  # number of this release in its ledger, from 1 on
TOOK = "pause-seconds"  # what it took by its own clock
OURS = (EPSILON, PARTICIPATION, TOOK)

# Code of the error by which a client refuses, as its budget is spent; Flower's own end at 8.
SPENT = 4801
# Flower's codes of replies that a client's side made in place of a release: the app could not be
# loaded, raised, a mod refused, a bad bundle, the app crashed. Of the others (expired, unavailable)
# nobody knows whether something was released.
RELEASED_NOTHING = frozenset({SPENT, 1, 2, 6, 7, 8})

WHO = "client_number"
ASK_WHO = f"query.{WHO}"
# The client's number in its node's configuration, as in Flower's examples and simulation.
NUMBER = "partition-id"


def introduce(app: ClientApp) -> ClientApp:
    """Let a client app answer which client its node is: ``partition-id`` of the node's config.

    For a strategy with ``numbering="reported"``. A SuperNode is started with its number:
    ``flower-supernode --node-config "partition-id=3" ...``; Flower's simulation does so by itself.

    Returns:
      The app.
    """

    @app.query(WHO)
    def client_number(message: Message, context: Context) -> Message:
        number = context.node_config.get(NUMBER, -1)
        said = ConfigRecord({NUMBER: number if isinstance(number, int) else -1})
        return Message(RecordDict({"who": said}), reply_to=message)

    return app
