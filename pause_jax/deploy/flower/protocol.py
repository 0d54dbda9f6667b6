"""What strategy and clients send each other besides the model: names, numbers, questions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pause_jax.deploy.flower.timing import TimedGrid
from pause_jax.deploy.selector import Question, Selector

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
# Of a question, whose name is the action and the metric of the answer.
NAMES = {"loss": "pause_loss", "features": "pause_features"}
BATCH = "pause-batch-size"

Loss = Callable[[ArrayRecord, int | None, Context], float]
Features = Callable[[Context], Sequence[float]]


def introduce(app: ClientApp) -> ClientApp:
    """Let a client app answer which client its node is: ``partition-id`` of the node's config.

    For a strategy with ``numbering="reported"``. A SuperNode is started with its number:
    ``flower-supernode --node-config "partition-id=3" ...``; Flower's simulation does so by itself.
    Returns the app.
    """

    @app.query(WHO)
    def client_number(message: Message, context: Context) -> Message:
        number = context.node_config.get(NUMBER, -1)
        said = ConfigRecord({NUMBER: number if isinstance(number, int) else -1})
        return Message(RecordDict({"who": said}), reply_to=message)

    return app


def answer(
    app: ClientApp, *, loss: Loss | None = None, features: Features | None = None
) -> ClientApp:
    """Let a client app answer what policies ask before they choose; returns the app.

    The answers leave the client without noise: the mechanism covers updates alone.

    Args:
      app: the client app.
      loss: (arrays of the global model, samples to draw or None for all, context) -> the mean loss
        on the client's data: for Power-of-Choice.
      features: (context) -> what the client knows of its coming round, F numbers
        (``Latency.features``): for RBCS-F and FedCS.
    """
    if loss is not None:

        @app.query(NAMES["loss"])
        def pause_loss(message: Message, context: Context) -> Message:
            (arrays,) = message.content.array_records.values()
            batch = int(message.content["config"][BATCH])
            said = float(loss(arrays, batch or None, context))
            return _reply(message, NAMES["loss"], said)

    if features is not None:

        @app.query(NAMES["features"])
        def pause_features(message: Message, context: Context) -> Message:
            return _reply(message, NAMES["features"], [float(x) for x in features(context)])

    return app


def _reply(message: Message, name: str, said: Any) -> Message:
    return Message(RecordDict({"answer": MetricRecord({name: said})}), reply_to=message)


def question_round(
    selector: Selector,
    present: dict[int, int],
    arrays: ArrayRecord,
    grid: TimedGrid,
    timeout: float,
) -> tuple[set[int], dict[int, Any] | None]:
    """Put a policy's question to its clients, if it has one.

    Of a client without a loss the policy keeps what it knows; one without features is not available
    in this round.

    Args:
      selector: the policy at work.
      present: node of each client that can be chosen.
      arrays: the model, which a question for the loss takes along.
      grid: of the run.
      timeout: seconds to wait for the answers.

    Returns:
      (available clients, answers by client; None of a policy that asks none).
    """
    available, answers, asked = set(present), dict[int, Any](), set[int]()
    while (question := selector.question(available)) is not None:
        who = set(question.clients.tolist())
        if who - asked:
            nodes = {client: present[client] for client in sorted(who - asked)}
            answers |= _ask(question, nodes, arrays, grid, timeout)
            asked |= who
        missing = who - answers.keys()
        if not missing or question.wants == "loss":
            return available, {client: answers[client] for client in who & answers.keys()}
        available -= missing
    return available, None


def _ask(
    question: Question, nodes: dict[int, int], arrays: ArrayRecord, grid: TimedGrid, timeout: float
) -> dict[int, Any]:
    name, messages = NAMES[question.wants], []
    for node in nodes.values():
        said = ConfigRecord({ROUND: question.round, BATCH: question.batch_size or 0})
        content = RecordDict({"config": said})
        if question.wants == "loss":
            content["arrays"] = arrays
        messages.append(Message(content, node, f"query.{name}", group_id=str(question.round)))
    client_of, answers = {node: client for client, node in nodes.items()}, {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        client = client_of[grid.nodes[reply.metadata.reply_to_message_id]]
        if reply.has_error():
            LOG.warning(
                "client %d does not answer (%s): put answer(app, %s=...) into its client app",
                client, reply.error.reason, question.wants,
            )  # fmt: skip
            continue
        records = list(reply.content.metric_records.values())
        said = records[0].get(name) if records else None
        if said is None or not np.isfinite(np.asarray(said, np.float64)).all():
            LOG.warning("client %d answers %s = %s: must be finite", client, name, said)
            continue
        answers[client] = said
    return answers
