"""Flower's messages without its processes: nodes are threads that a test adds and removes."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RAISED = 2  # Flower's code of an app that raised

# Without it no message can be made; Flower's own processes set it when they start.
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class LocalGrid(Grid):
    """A grid whose nodes call the client app in threads of this process, one at a time.

    Side by side they cannot: ``Array.numpy`` has NumPy parse a header as Python, which in CPython
    3.11 raises a SystemError once in a while if two threads do it at once.

    Attributes:
      nodes: the node's config, by node id: those that are connected.
      delays: seconds that a client waits before its app is called, by client; side by side.
      asked: (node, message type) of every message.
    """

    def __init__(
        self,
        app: Callable[[Message, Context], Message],
        nodes: dict[int, dict[str, Any]],
        delays: dict[int, float] | None = None,
    ):
        self.app, self.nodes, self.delays = app, nodes, delays or {}
        self._one_at_a_time = threading.Lock()
        self.asked: list[tuple[int, str]] = []
        self._replies: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            self.asked.append((node, message.metadata.message_type))
            if node in self.nodes:
                pushed.append(message.metadata.message_id)
                threading.Thread(target=self._answer, args=(message,), daemon=True).start()
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(each) for each in list(message_ids) if each in self._replies]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        return "a run"

    def _answer(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        context = Context(1, node, self.nodes[node], RecordDict(), {})
        time.sleep(self.delays.get(context.node_config.get("partition-id", -1), 0.0))
        try:
            with self._one_at_a_time:
                reply = self.app(message, context)
        except Exception as error:
            reply = Message(Error(RAISED, str(error)), reply_to=message)
        self._replies[message.metadata.message_id] = reply


def nodes(*clients: int, first: int = 100) -> dict[int, dict[str, Any]]:
    """Nodes of these clients: ids from ``first`` on, and what their configs say."""
    return {first + place: {"partition-id": client} for place, client in enumerate(clients)}
