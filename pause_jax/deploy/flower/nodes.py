"""Flower grid that measures latencies, and registry of the nodes' client numbers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from pause_jax.base.checks import float32_number
from pause_jax.base.spelling import shown
from pause_jax.base.struct import ConfigError
from pause_jax.deploy.flower.protocol import ASK_WHO, LOG, NUMBER

# Maximum wait for client numbers, in seconds. Nodes that do not answer are asked again next round.
PATIENCE = 60.0


def check_seconds(name: str, seconds: float) -> float:
    """Return ``seconds`` if positive and finite in float32, or raise ConfigError."""
    if not 0 < float32_number(seconds) < np.inf:
        raise ConfigError(f"{name} = {shown(seconds)}: must be > 0 and finite, in seconds.")
    return seconds


class TimedGrid:
    """Flower grid whose ``send_and_receive`` measures the latency of each reply.

    Flower's grid does not report when a reply arrived, and may poll for replies only every 3 s.
    Latency is the time from sending the messages to the poll that finds the reply, including
    transport, waiting and training. The error is at most ``poll_seconds`` plus one poll's duration.

    Attributes:
      nodes: destination node id of each message in the last call, keyed by message id.
        Error replies from the SuperLink do not contain the node id.
      seconds: latency of each answered message in the last call, keyed by message id.
    """

    def __init__(self, grid: Grid, poll_seconds: float = 0.1):
        """Wrap Flower's grid, and set the time between polls for replies.

        Raises:
          ConfigError: if ``poll_seconds`` is not positive and finite.
        """
        self._grid, self._poll = grid, check_seconds("poll_seconds", poll_seconds)
        self.nodes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return the replies that arrive within ``timeout`` seconds."""
        messages = list(messages)
        self.seconds = {}
        replies: list[Message] = []
        start = time.monotonic()
        # Flower returns no id for a message that it could not send.
        missing = {each for each in self._grid.push_messages(messages) if each}
        self.nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        while missing:
            came = list(self._grid.pull_messages(missing))
            now = time.monotonic() - start
            for reply in came:
                self.seconds[reply.metadata.reply_to_message_id] = now
                missing.discard(reply.metadata.reply_to_message_id)
            replies += came
            if not missing or (timeout is not None and now >= timeout):
                break
            time.sleep(self._poll if timeout is None else min(self._poll, timeout - now))
        return replies

    def __getattr__(self, name: str) -> Any:
        """Delegate all other attributes to the wrapped grid."""
        return getattr(self._grid, name)


class Roster:
    """Registry of the nodes' client numbers 0 .. K - 1, and of clients with a spent budget.

    The server asks each new node for its client number (:func:`introduce`). A SuperNode restarted
    with a new node id keeps its client number. If two nodes share a number, the second is ignored.

    Attributes:
      spent: numbers of the clients that reported a spent budget. After the server restarts, these
        clients report a spent budget again when they are first chosen.
    """

    def __init__(self, num_clients: int):
        self.num_clients = num_clients
        self.spent: set[int] = set()
        self._number: dict[int, int | None] = {}  # keyed by node id; None if the number is invalid

    def present(self, grid: TimedGrid, timeout: float) -> dict[int, int]:
        """Return the node of each connected client, keyed by client number.

        Wait at most ``timeout`` seconds for new nodes to report their client numbers.
        """
        connected = sorted(grid.get_node_ids())
        # Forget disconnected nodes, because a node may get a new id when it reconnects.
        self._number = {node: self._number[node] for node in self._number if node in connected}
        new = [node for node in connected if node not in self._number]
        if new:
            self._ask(grid, new, min(timeout, PATIENCE))
        present: dict[int, int] = {}
        # Use registration order, because a client number belongs to the first node that reports it.
        for node, number in self._number.items():
            if number is None:
                continue
            first = present.setdefault(number, node)
            if node != first and node in new:
                LOG.warning(
                    "node %d has the same client number (%d) as node %d, and is ignored while that "
                    "node is connected. Give each SuperNode a unique %s", node, number, first,
                    NUMBER,
                )  # fmt: skip
        return present

    def _ask(self, grid: TimedGrid, new: list[int], timeout: float) -> None:
        said_by: dict[int, int | None] = {}
        questions = [Message(RecordDict(), node, ASK_WHO) for node in new]
        for reply in grid.send_and_receive(questions, timeout=timeout):
            node = grid.nodes[reply.metadata.reply_to_message_id]
            if reply.has_error():
                LOG.warning(
                    "node %d did not report its client number (%s). Call introduce(app) in its "
                    "client app", node, reply.error.reason,
                )  # fmt: skip
                continue
            said = [record.get(NUMBER) for record in reply.content.config_records.values()]
            number = said[0] if said else None
            if type(number) is not int or not 0 <= number < self.num_clients:
                LOG.warning(
                    "node %d reported %s = %s: must be between 0 and %d (K - 1). The "
                    "node is ignored", node, NUMBER, number, self.num_clients - 1,
                )  # fmt: skip
                number = None
            said_by[node] = number
        # Register nodes in order of id, because the order of the replies is arbitrary.
        self._number.update(sorted(said_by.items()))
