"""A Flower mod: a client releases its update through a mechanism, on its own budget."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from pause_jax.base.checks import check_fields
from pause_jax.base.struct import ConfigError, Sizes, nested
from pause_jax.deploy.flower.ledger import Ledger
from pause_jax.deploy.flower.protocol import (
    EPSILON,
    LOG,
    NUMBER,
    PARTICIPATION,
    ROUND,
    SPENT,
    TOOK,
)
from pause_jax.deploy.flower.replies import flat_update, is_float
from pause_jax.privacy import Mechanism

_privatize = jax.jit(lambda privacy, key, update, epsilon: privacy.privatize(key, update, epsilon))


class PrivateRelease:
    """The mod of a client app whose updates are private whatever the server does.

    ``ClientApp(mods=[PrivateRelease(privacy, "budget.jsonl")])``. In a train message's way back it
    takes the difference between the trained arrays and those that came, flat, as one update; clips
    and noises it by the mechanism, at the epsilon of the client's own next participation; and adds
    it to the arrays that came. Arrays that are no floats go back as they came. Of the metrics only
    those named in ``clear`` leave, and the mod's own three; other records stay. A client whose
    budget is spent does not train: it answers with an error that ``PauseStrategy`` understands.

    What an exception of the client app says reaches the server without noise: Flower sends its
    text. Noise is float32 (``pause_jax.privacy.mechanisms``): a statistical simulation, which an
    adversary who reads the bits may tell apart; it is no implementation to rely on against one.
    """

    def __init__(
        self,
        privacy: Mechanism,
        ledger: str | os.PathLike[str],
        *,
        clear: Sequence[str] = ("num-examples",),
        seed: int | None = None,
    ):
        """Make the mod.

        Args:
          privacy: the mechanism with its budget, by the client's own config. A law of budgets
            that is not drawn is read at the client's number, ``partition-id`` of the node's config.
          ledger: the file of the client's releases (:class:`Ledger`). Words in braces are entries
            of the node's config, for several clients on one machine:
            ``"ledgers/{partition-id}.jsonl"``.
          clear: names of metrics that leave as they are, without noise.
          seed: for tests alone, as noise that can be foretold protects nothing: with the node's
            ``partition-id`` and the participation it fixes the noise. By default every release
            draws fresh entropy from the system.

        Raises:
          ConfigError: for a mechanism that cannot run.
        """
        if not isinstance(privacy, Mechanism):
            raise ConfigError(
                f"privacy = {privacy!r}: must be a Mechanism, such as config.privacy."
            )
        check_fields(privacy)
        for path, part in nested(_of_client(privacy, 0), "privacy"):
            part.check(path, Sizes(1, 1, 1))
        self._privacy, self._path = privacy, os.fspath(ledger)
        self._clear, self._seed = tuple(clear), seed

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Flower calls this with each message.

        Raises:
          ConfigError: for a ledger that cannot be used, arrays that do not fit those that came, or
            an update that is not finite; Flower tells the server, and nothing is released.
        """
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        start = time.monotonic()
        ledger = self.ledger(context)
        if ledger.exhausted:
            return self._refusal(message, ledger)
        came = _only(message.content.array_records, "the server's message", "ArrayRecord")[1]
        came = {name: array.numpy() for name, array in came.items()}
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        name, record = _only(reply.content.array_records, "the client's reply", "ArrayRecord")
        update = _difference({key: array.numpy() for key, array in record.items()}, came)
        words, metrics = _only(reply.content.metric_records, "the client's reply", "MetricRecord")

        told: dict[str, Any] = {}
        for config in message.content.config_records.values():
            told |= config
        at = int(told.get(ROUND, 0))
        entered = ledger.enter(run=context.run_id, round=at)
        if entered is None:
            return self._refusal(message, ledger)
        number, epsilon = entered
        if EPSILON in told and not np.isclose(float(told[EPSILON]), epsilon, rtol=1e-4):
            LOG.warning(
                "round %d: the server tells an epsilon of %g, and this client's release %d has %g: "
                "released at its own", at, told[EPSILON], number, epsilon,
            )  # fmt: skip
        released = _privatize(
            self._privacy, self._key(context, number), jnp.asarray(update), jnp.float32(epsilon)
        )
        arrays = _added(came, np.asarray(released))
        own = {EPSILON: epsilon, PARTICIPATION: number, TOOK: time.monotonic() - start}
        kept = {key: metrics[key] for key in self._clear if key in metrics}
        return Message(
            RecordDict({name: arrays, words: MetricRecord({**own, **kept})}), reply_to=message
        )

    def ledger(self, context: Context) -> Ledger:
        """The ledger of the client whose context this is.

        Raises:
          ConfigError: if it cannot be used, or the node's config lacks a word of the path.
        """
        try:
            path = self._path.format_map(context.node_config)
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"ledger = {self._path!r}: what stands in braces must be an entry of the node's "
                f"config, which has {', '.join(context.node_config) or 'none'} ({error!r})."
            ) from None
        number = context.node_config.get(NUMBER, -1)
        return Ledger(path, _of_client(self._privacy, number if isinstance(number, int) else -1))

    def _key(self, context: Context, number: int) -> jax.Array:
        if self._seed is None:
            fresh = jax.random.key(0)
            data = jax.random.key_data(fresh)
            entropy = np.frombuffer(os.urandom(data.size * 4), np.uint32).reshape(data.shape)
            return jax.random.wrap_key_data(jnp.asarray(entropy), impl=jax.random.key_impl(fresh))
        client = int(context.node_config.get(NUMBER, 0))
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(self._seed), client), number)

    def _refusal(self, message: Message, ledger: Ledger) -> Message:
        words = f"pause_jax: the budget is spent after {ledger.participations} releases"
        LOG.info("%s: nothing is trained, nothing is released", words)
        return Message(Error(SPENT, words), reply_to=message)


def _of_client(privacy: Mechanism, client: int) -> Mechanism:
    """The mechanism on the budget of one client."""
    return privacy.with_budget(privacy.budget.of_client(client))


def _only(records: Any, where: str, kind: str) -> tuple[str, Any]:
    if len(records) != 1:
        raise ConfigError(f"{where} has {len(records)} {kind}s: must be exactly one.")
    return next(iter(records.items()))


def _difference(
    trained: dict[str, np.ndarray[Any, Any]], came: dict[str, np.ndarray[Any, Any]]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """All floats of the update, flat, float32 [d]."""
    for name in came.keys() | trained.keys():
        shapes = [np.shape(arrays[name]) if name in arrays else None for arrays in (trained, came)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"the client's array {name!r} has shape {shapes[0]}, the server's {shapes[1]}: "
                "must be equal. Return the arrays that were sent, trained."
            )
    update = flat_update(trained, came)
    if not np.isfinite(update).all():
        raise ConfigError("the update is not finite: nothing is released.")
    return update


def _added(came: dict[str, np.ndarray[Any, Any]], released: np.ndarray[Any, Any]) -> ArrayRecord:
    arrays, at = {}, 0
    for name, array in came.items():
        if is_float(array):
            part = released[at : at + array.size].reshape(array.shape)
            arrays[name] = Array(np.asarray(array + part, array.dtype))
            at += array.size
        else:
            arrays[name] = Array(array)
    return ArrayRecord(arrays)
