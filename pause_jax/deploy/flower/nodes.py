"""The nodes of a grid: when their replies came, and which client each node is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from pause_jax.base.struct import ConfigError
from pause_jax.deploy.flower.protocol import ASK_WHO, LOG, NUMBER

# Seconds to wait for a node's answer which client it is; it is asked again in the next round.
PATIENCE = 60.0


class TimedGrid:
    """A Flower grid whose ``send_and_receive`` stamps what it sends and what comes back.

    Flower's own does not say when a reply came, and may look every 3 s only.

    Latency is the time from handing a message to the SuperLink until its reply is seen here, by
    this machine's steady clock: transport, waiting and training, as the server feels it. It is too
    long by up to ``poll_seconds`` and the time of a poll.

    Attributes:
      nodes: of the last call, the node of each message, by the message's id. An error that the
        SuperLink makes for a node does not say which node it is about.
      seconds: of the last call, latency of each message whose reply came, by its id.
    """

    def __init__(self, grid: Grid, poll_seconds: float = 0.1):
        """Wrap Flower's grid; ``poll_seconds`` pass between two looks for replies.

        Raises:
          ConfigError: if they are not > 0.
        """
        if not poll_seconds > 0:
            rule = "must be > 0, the seconds between two looks for replies."
            raise ConfigError(f"poll_seconds = {poll_seconds}: {rule}")
        self._grid, self._poll = grid, poll_seconds
        self.nodes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their replies, for at most ``timeout`` seconds."""
        messages = list(messages)
        self.nodes = {}
        self.seconds = {}
        replies: list[Message] = []
        start = time.monotonic()
        # `None` for a message that could not be handed over.
        pushed = {each for each in self._grid.push_messages(messages) if each} if messages else ()
        for message in messages:
            self.nodes[message.metadata.message_id] = message.metadata.dst_node_id
        missing = set(pushed)
        while missing:
            came = list(self._grid.pull_messages(missing))
            now = time.monotonic() - start
            for reply in came:
                self.seconds[reply.metadata.reply_to_message_id] = now
                missing.discard(reply.metadata.reply_to_message_id)
            replies += came
            if not missing or (timeout is not None and now >= timeout):
                break
            left = self._poll if timeout is None else min(self._poll, timeout - now)
            time.sleep(left)
        return replies

    def __getattr__(self, name: str) -> Any:
        """Return everything else from the wrapped grid."""
        return getattr(self._grid, name)


class Roster:
    """The clients' numbers 0 .. K - 1 of the nodes, and which clients are spent.

    Every node is asked once for its number (:func:`introduce`). A SuperNode that restarts under
    another node id is the same client. Of two connected nodes with one number, the first one has
    it.

    Attributes:
      num_clients: K.
      spent: numbers of clients that reported a spent budget. After a restart of the server, each
        reports it again when first chosen.
    """

    def __init__(self, num_clients: int):
        """Start without any node."""
        self.num_clients = num_clients
        self.spent: set[int] = set()
        self._number: dict[int, int | None] = {}  # by node; None without a valid number

    def present(self, grid: TimedGrid, timeout: float) -> dict[int, int]:
        """The node of each connected client, by the client's number.

        ``timeout`` is how many seconds to wait, at most, for the numbers of new nodes.
        """
        connected = sorted(grid.get_node_ids())
        # A node that comes back may have another number meanwhile: it is asked again.
        self._number = {node: self._number[node] for node in self._number if node in connected}
        new = [node for node in connected if node not in self._number]
        if new:
            self._ask(grid, new, min(timeout, PATIENCE))
        present: dict[int, int] = {}
        # In the order in which the nodes were numbered: of two with one number the first has it.
        for node, number in self._number.items():
            if number is not None:
                present.setdefault(number, node)
        for node in new:
            number = self._number.get(node)
            if number is not None and present[number] != node:
                LOG.warning(
                    "node %d says that it is client %d, which node %d is: left out while that one "
                    "is connected; give each SuperNode a %s of its own", node, number,
                    present[number], NUMBER,
                )  # fmt: skip
        return present

    def _ask(self, grid: TimedGrid, new: list[int], timeout: float) -> None:
        said_by: dict[int, int | None] = {}
        questions = [Message(RecordDict(), node, ASK_WHO) for node in new]
        for reply in grid.send_and_receive(questions, timeout=timeout):
            node = grid.nodes[reply.metadata.reply_to_message_id]
            if reply.has_error():
                LOG.warning(
                    "node %d does not say which client it is (%s): put introduce(app) into its "
                    "client app", node, reply.error.reason,
                )  # fmt: skip
                continue
            said = [record.get(NUMBER) for record in reply.content.config_records.values()]
            number = said[0] if said else None
            if type(number) is not int or not 0 <= number < self.num_clients:
                LOG.warning(
                    "node %d says %s = %s: must be 0 to %d, the numbers of the config's clients; "
                    "it is left out", node, NUMBER, number, self.num_clients - 1,
                )  # fmt: skip
                number = None
            said_by[node] = number
        # In the order of node ids, so that it does not matter whose answer came first.
        self._number.update(sorted(said_by.items()))
