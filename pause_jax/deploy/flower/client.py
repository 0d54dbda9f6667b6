"""Client side of the Flower integration: ledger, privacy mod and query handlers."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from pause_jax.base.checks import check_fields
from pause_jax.base.source_file import sync_names, written
from pause_jax.base.struct import ConfigError, Sizes, nested
from pause_jax.config.config_file import to_dict
from pause_jax.deploy.flower.protocol import (
    BATCH,
    EPSILON,
    LOG,
    NAMES,
    NUMBER,
    PARTICIPATION,
    REPEATED,
    ROUND,
    SPENT,
    TOOK,
    WHO,
    flat_update,
    is_float,
    only,
)
from pause_jax.privacy import Mechanism

Loss = Callable[[ArrayRecord, int | None, Context], float]
Features = Callable[[Context], Sequence[float]]
_privatize = jax.jit(lambda privacy, key, update, epsilon: privacy.privatize(key, update, epsilon))


def introduce(app: ClientApp) -> ClientApp:
    """Register a query handler that returns the node's client number, and return the app.

    The number is the ``partition-id`` entry in the node's config, which Flower's simulation sets.
    On a real node, set it with ``flower-supernode --node-config "partition-id=3" ...``.
    """

    @app.query(WHO)
    def client_number(message: Message, context: Context) -> Message:
        number = ConfigRecord({NUMBER: _number(context)})
        return Message(RecordDict({"who": number}), reply_to=message)

    return app


def answer(
    app: ClientApp, *, loss: Loss | None = None, features: Features | None = None
) -> ClientApp:
    """Register handlers that answer a policy's queries, and return the app.

    The answers are sent without noise, because the mechanism protects only updates.

    Args:
      app: Flower client app.
      loss: function (global model arrays, mini-batch size or None for all samples, context)
        -> mean loss on the client's data; required for Power-of-Choice and FedCor.
      features: function (context) -> F features of the client's next round
        (``Latency.features``); required for RBCS-F and FedCS.
    """
    if loss is not None:

        @app.query(NAMES["loss"])
        def pause_loss(message: Message, context: Context) -> Message:
            (arrays,) = message.content.array_records.values()
            batch = int(message.content["config"][BATCH])
            metrics = MetricRecord({NAMES["loss"]: float(loss(arrays, batch or None, context))})
            return Message(RecordDict({"answer": metrics}), reply_to=message)

    if features is not None:

        @app.query(NAMES["features"])
        def pause_features(message: Message, context: Context) -> Message:
            metrics = MetricRecord({NAMES["features"]: [float(x) for x in features(context)]})
            return Message(RecordDict({"answer": metrics}), reply_to=message)

    return app


def _number(context: Context) -> int:
    """Return the client number (``partition-id`` in the node's config), or -1 if it is invalid."""
    number = context.node_config.get(NUMBER, -1)
    return number if isinstance(number, int) else -1


class Ledger:
    """Append-only file of one client's releases.

    The first line describes the mechanism and its budget. Each later line records a release, and
    is flushed to disk before the update is sent. After a crash, the count may be one release too
    high, but is never too low. Concurrent processes can share a file and get distinct release
    numbers. Keep the file as long as you keep the data, because a new ledger has a full budget.
    """

    def __init__(self, path: str | pathlib.Path, privacy: Mechanism):
        """Open or create the ledger.

        Raises:
          ConfigError: if the file is not a ledger, was created for a different mechanism or budget,
            or cannot be read or created.
        """
        self.path, self.privacy = pathlib.Path(path), privacy
        described = {"class": type(privacy).__name__, **to_dict(privacy)}
        head = json.dumps({"ledger": 1, "unit": privacy.unit, "privacy": described})
        try:
            if not self.path.exists():
                self._create(head)
            first_line = self.path.read_text("utf-8").partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: cannot be used as a ledger ({error}).") from None
        if first_line != head:
            raise ConfigError(
                f"{self.path}: starts with {first_line[:1000]!r}: must start with {head!r} for "
                "this mechanism. Pass the file's original mechanism, or a new file."
            )

    @property
    def participations(self) -> int:
        """Number of releases recorded so far."""
        return len(self._lines())

    @property
    def spent(self) -> float:
        """Total epsilon of all releases so far, for the privacy unit ``privacy.unit``."""
        return float(self.privacy.budget.spent(jnp.asarray(self.participations)))

    @property
    def exhausted(self) -> bool:
        """Whether the budget's schedule forbids another release."""
        return bool(self.privacy.budget.exhausted(jnp.asarray(self.participations + 1)))

    def has(self, **remarks: Any) -> bool:
        """Return whether a release was recorded with the given remarks."""
        wanted = json.dumps(remarks)[1:-1]
        return any(line.rstrip().endswith(f", {wanted}}}") for line in self._lines())

    def enter(self, **remarks: Any) -> tuple[int, float] | None:
        """Record a release, with JSON-serializable ``remarks``, before it is sent.

        Returns:
          (1-based release number, epsilon), or None if the budget is spent and nothing may be sent.
        """
        if self.exhausted:
            return None
        mark = secrets.token_hex(8)
        # Start with a line break, because a crash may have cut off the previous line.
        line = "\n" + json.dumps({"release": mark, **remarks})
        with self.path.open("ab", buffering=0) as file:
            file.write(line.encode())
            os.fsync(file.fileno())
        number = next(i for i, text in enumerate(self._lines(), 1) if mark in text)
        # Another process may have spent the remaining budget in the meantime.
        if bool(self.privacy.budget.exhausted(jnp.asarray(number))):
            return None
        return number, float(self.privacy.budget.epsilon(jnp.asarray(number)))

    def _lines(self) -> list[str]:
        # Count every release, even if a damaged line contains several.
        text = self.path.read_text("utf-8").replace('{"release"', '\n{"release"')
        return [line for line in text.split("\n")[1:] if line.strip()]

    def _create(self, head: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
        with written(part) as file:
            file.write(head.encode())
        # Unlike a rename, a link does not overwrite a file that another process just created.
        with contextlib.suppress(FileExistsError):
            os.link(part, self.path)
        part.unlink()
        sync_names(self.path.parent)


class PrivateRelease:
    """Flower mod that privatizes a client app's updates, regardless of the server's instructions.

    Add it with ``ClientApp(mods=[PrivateRelease(privacy, "budget.jsonl")])``. The mod flattens the
    change in the float arrays into one update, and privatizes it with the epsilon of the client's
    next participation. It replies with the received float arrays plus the privatized update, and
    returns other arrays as received. The mod removes all metrics not listed in ``clear``, and adds
    three metrics to the reply. A client releases at most one update per round, and does not train
    if its budget is spent.

    If the client app raises an exception, Flower sends the exception text to the server
    unchanged. The float32 noise (``pause_jax.privacy.mechanisms``) is a statistical simulation,
    and does not protect against an adversary who inspects the bits of a release.
    """

    def __init__(
        self,
        privacy: Mechanism,
        ledger: str | os.PathLike[str],
        *,
        clear: Sequence[str] = ("num-examples",),
        seed: int | None = None,
    ):
        """Configure the mod.

        Args:
          privacy: mechanism and budget. ``budget.law`` must not be random. The law determines the
            client's budget from its number (``partition-id`` in the node's config).
          ledger: file for the client's releases (:class:`Ledger`). Keys in braces are replaced with
            values from the node's config, as in ``"ledgers/{partition-id}.jsonl"``.
          clear: names of metrics to send without noise.
          seed: noise seed, combined with the node's ``partition-id`` and the release number.
            Set a seed only in tests, because predictable noise provides no privacy. By default,
            the noise of every release uses fresh entropy from the operating system.

        Raises:
          ConfigError: if ``privacy`` is not a mechanism, or its fields or budget are invalid.
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
        """Privatize the reply to a training message, and pass all other messages on unchanged.

        Raises:
          ConfigError: if the ledger is unusable, the trained arrays do not match the received ones,
            or the update is not finite. Nothing is released, and the server receives an error.
        """
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        start = time.monotonic()
        ledger = self.ledger(context)
        if ledger.exhausted:
            return self._refusal(message, ledger)
        config: dict[str, Any] = {}
        for each in message.content.config_records.values():
            config |= each
        asked = {"run": context.run_id, "round": int(config.get(ROUND, 0))}
        if ROUND in config and ledger.has(**asked):
            words = "pause_jax: this client has already released an update in this round"
            return Message(Error(REPEATED, words), reply_to=message)
        sent = only(message.content.array_records, "the server's message", "ArrayRecord")[1]
        before = {name: array.numpy() for name, array in sent.items()}
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        where = "the client's reply"
        name, record = only(reply.content.array_records, where, "ArrayRecord")
        metrics_name, metrics = only(reply.content.metric_records, where, "MetricRecord")
        update = _difference({key: array.numpy() for key, array in record.items()}, before)

        entered = ledger.enter(**asked)
        if entered is None:
            return self._refusal(message, ledger)
        number, epsilon = entered
        if EPSILON in config and not np.isclose(float(config[EPSILON]), epsilon, rtol=1e-4):
            LOG.warning(
                "round %d: the server expects epsilon %g, but this client's release %d has epsilon "
                "%g. The client's epsilon is used", asked["round"], config[EPSILON], number,
                epsilon,
            )  # fmt: skip
        noise_key = self._key(context, number)
        released = _privatize(self._privacy, noise_key, jnp.asarray(update), jnp.float32(epsilon))
        released_metrics = MetricRecord(
            {
                EPSILON: epsilon,
                PARTICIPATION: number,
                TOOK: time.monotonic() - start,
                **{key: metrics[key] for key in self._clear if key in metrics},
            }
        )
        records = {name: _added(before, np.asarray(released)), metrics_name: released_metrics}
        return Message(RecordDict(records), reply_to=message)

    def ledger(self, context: Context) -> Ledger:
        """Return the client's ledger, or raise ConfigError if the path or the ledger is invalid."""
        try:
            path = self._path.format_map(context.node_config)
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"ledger = {self._path!r}: keys in braces must be in the node's config, which has "
                f"{', '.join(context.node_config) or 'no keys'} ({error!r})."
            ) from None
        return Ledger(path, _of_client(self._privacy, _number(context)))

    def _key(self, context: Context, number: int) -> jax.Array:
        if self._seed is None:
            fresh = jax.random.key(0)
            data = jax.random.key_data(fresh)
            entropy = np.frombuffer(os.urandom(data.size * 4), np.uint32).reshape(data.shape)
            return jax.random.wrap_key_data(jnp.asarray(entropy), impl=jax.random.key_impl(fresh))
        client = int(context.node_config.get(NUMBER, 0))
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(self._seed), client), number)

    def _refusal(self, message: Message, ledger: Ledger) -> Message:
        words = f"pause_jax: budget spent after {ledger.participations} releases"
        return Message(Error(SPENT, words), reply_to=message)


def _of_client(privacy: Mechanism, client: int) -> Mechanism:
    return privacy.with_budget(privacy.budget.of_client(client))


def _difference(
    trained: dict[str, NDArray[Any]], came: dict[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """Return the flat update, float32 [d]. Raise ConfigError if a shape or value is invalid."""
    for name in came.keys() | trained.keys():
        shapes = [
            np.shape(arrays[name]) if name in arrays else "none" for arrays in (trained, came)
        ]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"array {name!r} has shape {shapes[0]} in the client's reply and {shapes[1]} in "
                "the server's message: must be equal. Return all received arrays after training."
            )
    update = flat_update(trained, came)
    if not np.isfinite(update).all():
        raise ConfigError("the update is not finite: nothing was released.")
    return update


def _added(came: dict[str, NDArray[Any]], released: NDArray[Any]) -> ArrayRecord:
    arrays, at = {}, 0
    for name, array in came.items():
        if is_float(array):
            part = released[at : at + array.size].reshape(array.shape)
            arrays[name] = Array(np.asarray(array + part, array.dtype))
            at += array.size
        else:
            arrays[name] = Array(array)
    return ArrayRecord(arrays)
