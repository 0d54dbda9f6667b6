"""A grid that says when each reply came: Flower's own does not, and may look every 3 s only."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from pause_jax.base.struct import ConfigError


class TimedGrid(Grid):
    """Another grid, whose ``send_and_receive`` stamps what it sends and what comes back.

    Latency is the time from handing a message to the SuperLink until its reply is seen here, by
    this machine's steady clock: transport, waiting and training, as the server feels it. It is too
    long by up to ``poll_seconds`` and the time of a poll.

    Attributes:
      nodes: of the last call, the node of each message, by the message's id. An error that the
        SuperLink makes for a node does not say which node it is about.
      seconds: of the last call, latency of each message whose reply came, by its id.
      waited: seconds that the last call took.
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
        self.waited = 0.0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        self.nodes, self.seconds, replies = {}, {}, []
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
        self.waited = time.monotonic() - start
        return replies

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)
