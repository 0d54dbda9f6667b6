"""Choices and questions for a server, and its reports as a policy reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pause_jax.bandit.protocol import Observation
from pause_jax.base.struct import ConfigError
from pause_jax.config import SimConfig, loaded, validate
from pause_jax.policies import Answer


def served(config: SimConfig, *, overlaps: bool) -> SimConfig:
    """The config with what it reads from files.

    Raises:
      ConfigError: if it cannot run, or its rounds overlap and should not, or the other way round.
    """
    validate(config)
    if config.overlaps != overlaps:
        name, rule = f"clock = {config.clock.name!r}", "chooses round by round"
        if overlaps:
            raise ConfigError(f"{name}: rounds do not overlap, and a Selector {rule}. Take that.")
        raise ConfigError(
            f"{name}: a Selector {rule}. Take AsynchronousSelector, or clock = Synchronous()."
        )
    return loaded(config)


class Choice(NamedTuple):
    """The clients to train in a round.

    Attributes:
      round: its number, from 1 on.
      clients: int [n], n <= m.
      weights: float [n], aggregation weights; they sum to one.
      epsilon: float [n], budget of each client's release in this round, in ``epsilon_unit``;
        infinite without privacy.
    """

    round: int
    clients: NDArray[np.int32]
    weights: NDArray[np.float32]
    epsilon: NDArray[np.float32]


class Question(NamedTuple):
    """A policy's question before it chooses.

    Attributes:
      round: that it is about.
      clients: int [n], the asked clients.
      wants: ``loss``, the mean loss of the global model on the client's data, which is not covered
        by the mechanism; or ``features``, what the client knows of its coming round
        (``Latency.features``).
      batch_size: samples of a mini-batch that the loss is computed on; None for all.
    """

    round: int
    clients: NDArray[np.int32]
    wants: str
    batch_size: int | None


class Reports(NamedTuple):
    """A server's reports of a round, by client; see ``Selector.tell``."""

    seconds: Mapping[int, float]
    loss: Mapping[int, float] | None
    square_loss: Mapping[int, float] | None
    update: Mapping[int, ArrayLike] | None
    failed: Mapping[int, float] | None


def numbers(name: str, clients: Iterable[int], num_clients: int) -> list[int]:
    """Numbers of clients. Raises ConfigError for one that is no client."""
    each = list(clients)
    if each and not all(isinstance(k, int | np.integer) and not isinstance(k, bool) for k in each):
        raise ConfigError(
            f"{name}: must be numbers of clients, int; numpy.flatnonzero makes them of a mask."
        )
    found = [int(client) for client in each]
    for client in found:
        if not 0 <= client < num_clients:
            raise ConfigError(f"{name}: {client} is no client; they are 0 to {num_clients - 1}.")
    return found


def check_among(name: str, clients: Iterable[int], known: Collection[int], what: str) -> None:
    """Raise ConfigError for a client that is not among those that ``what`` names."""
    for client in clients:
        if int(client) not in known:
            raise ConfigError(
                f"{name}: client {client} was not {what}, but "
                f"{', '.join(map(str, known)) or 'nobody'}."
            )


def observation(
    reports: Reports, slots: Mapping[int, int], config: SimConfig, update_size: int
) -> tuple[Observation, NDArray[np.bool_]]:
    """What the policy sees of a round, and bool [m], of which clients it learns anything.

    ``slots`` has the chosen clients' places in the cohort, or in the buffer of a server step;
    ``update_size`` is d.

    Raises:
      ConfigError: for seconds that are not finite and > 0.
    """
    m, took = config.num_slots, {**reports.seconds, **(reports.failed or {})}
    latency = np.ones(m, np.float32)
    known, received = np.zeros(m, bool), np.zeros(m, bool)
    losses = {"loss": np.ones(m, np.float32), "square_loss": np.ones(m, np.float32)}
    updates = np.zeros((m, update_size), np.float32)
    for client, slot in slots.items():
        if client not in took:
            continue
        taken = took[client]
        if not (isinstance(taken, int | float | np.number) and np.isfinite(taken) and taken > 0):
            raise ConfigError(f"seconds[{client}] = {taken}: must be finite and > 0.")
        latency[slot] = max(taken, float(config.latency.min_latency))
        known[slot], received[slot] = True, client in reports.seconds
        if not received[slot]:
            losses["loss"][slot] = losses["square_loss"][slot] = np.nan
            continue
        for name, values in (("loss", reports.loss), ("square_loss", reports.square_loss)):
            if values is not None:
                losses[name][slot] = values.get(client, np.nan)
        if reports.update is not None and client in reports.update:
            updates[slot] = np.asarray(reports.update[client], np.float32)
    seen = Observation(latency, losses["loss"], losses["square_loss"], updates, received)  # type: ignore[arg-type]
    return seen, known


def answer(
    answers: Mapping[int, ArrayLike],
    clients: NDArray[np.int32],
    asked: NDArray[np.bool_],
    question: Question,
    num_features: int,
) -> Answer:
    """What the policy receives from the clients that it asked; a missing loss was not reported.

    ``answers`` has a loss or features [F] by client; ``clients`` int [d] are the slots of the
    question, and ``asked`` bool [d] those that were asked.

    Raises:
      ConfigError: for an answer of another form, or missing features.
    """
    loss = np.ones(len(clients), np.float32)
    features = np.ones((len(clients), num_features), np.float32)
    reported = np.ones(len(clients), bool)
    wanted = loss if question.wants == "loss" else features
    for place in np.flatnonzero(asked):
        client = int(clients[place])
        if client in answers:
            wanted[place] = _finite(client, answers[client], wanted.shape[1:], question.wants)
        elif question.wants == "loss":
            loss[place], reported[place] = np.nan, False
        else:
            raise ConfigError(
                f"answers: client {client} is missing, and the policy asked for its features. "
                "Leave it out of `available` if it does not answer."
            )
    return Answer(loss, features, reported)  # type: ignore[arg-type]


def _finite(client: int, said: ArrayLike, shape: tuple[int, ...], wants: str) -> NDArray[Any]:
    try:
        given = np.asarray(said, np.float32)
    except (TypeError, ValueError):
        given = np.asarray(np.nan)
    if given.shape != shape or not np.isfinite(given).all():
        rule = f"must be finite, of shape {shape} ({wants})."
        raise ConfigError(f"answers[{client}] = {said!r}: {rule}")
    return given


def sizes(data_size: ArrayLike | None, num_clients: int) -> NDArray[np.float32]:
    """Samples of each client, float [K]. Raises ConfigError if they are not [K] and > 0."""
    if data_size is None:
        return np.ones(num_clients, np.float32)
    size = np.asarray(data_size, np.float32)
    if size.shape != (num_clients,) or not (np.isfinite(size) & (size > 0)).all():
        raise ConfigError(
            f"data_size = {np.array2string(size, threshold=8)}: must be [{num_clients}], samples "
            "> 0 of each client."
        )
    return size
