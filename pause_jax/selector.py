"""A policy at work: ask it whom to choose, tell it what came back. For any server.

    selector = Selector(config, jax.random.key(0), data_size=sizes)
    choice = selector.ask(available)          # clients, weights, epsilon of each
    ...                                       # the server's round
    selector.tell({client: seconds, ...})     # of those that answered
    selector.save("selector.npz")

Fed with the latencies of a simulation it chooses what ``simulate`` chooses.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from pause_jax import config_file, keys
from pause_jax.bandit import Observation, Selection
from pause_jax.config import SimConfig, canonical, loaded, validate
from pause_jax.policies import Context, check_selected
from pause_jax.struct import ConfigError


class Choice(NamedTuple):
    """Whom to train in a round.

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


class Selector:
    """A policy and its state, for a server of one's own.

    Attributes:
      config: what it was made from.
      round: rounds that were asked for.
      counts: int [K], rounds in which each client may have released something.
    """

    def __init__(
        self,
        config: SimConfig,
        key: Array,
        *,
        data_size: ArrayLike | None = None,
        update_size: int = 0,
    ):
        """Begin before round 1.

        Args:
          config: its policy, reward, mechanism with the budget, sizes, ``when_spent``, and its
            latency model for ``min_latency`` and whatever the policy assumes known.
          key: typed; that of a simulation gives its choices.
          data_size: samples of each client [K]; equal by default.
          update_size: entries of an update, for a policy that reads updates.

        Raises:
          ConfigError: if the config cannot run, sizes do not fit, or the policy asks clients before
            it chooses, for which there is no call here.
        """
        validate(config)
        config = loaded(config)
        self.config, self.round = config, 0
        self._size = _sizes(data_size, config.num_clients)
        self._update_size = update_size
        self._canonical = canonical(config)
        self._policy = config.policy.build(self._context())
        if self._policy.query is not None:
            raise ConfigError(
                f"policy = {config.policy.name}: asks clients before it chooses, which a Selector "
                "has no call for. Take a policy without a question."
            )
        self._key = keys.streams(key).policy
        self._state = jax.jit(self._policy.init)()
        self._pending: Selection | None = None
        self.counts = np.zeros(config.num_clients, np.int32)
        self._select, self._update = jax.jit(self._policy.select), jax.jit(self._policy.update)

    @property
    def epsilon_unit(self) -> str:
        """What an epsilon protects: ``coordinate``, ``update`` or ``none``."""
        return self.config.privacy.unit

    @property
    def spent(self) -> NDArray[np.float32]:
        """Budget that each client has spent, float [K]."""
        return np.asarray(self._canonical.privacy.budget.spent(jnp.asarray(self.counts)))

    def ask(self, available: Iterable[int] | None = None) -> Choice:
        """Whom to train in the next round.

        Args:
          available: numbers of the clients that can be chosen; all by default. One whose budget is
            spent is left out in any case.

        Raises:
          ConfigError: for numbers that are no clients, or before the round before was told.
        """
        if self._pending is not None:
            raise ConfigError(
                f"round {self.round} is open: tell what came back of it (an empty mapping if "
                "nothing did) before the next ask."
            )
        num_clients, budget = self.config.num_clients, self._canonical.privacy.budget
        present = np.ones(num_clients, bool)
        if available is not None:
            present = np.zeros(num_clients, bool)
            present[self._numbers("available", available)] = True
        times = jnp.asarray(self.counts + 1)
        present &= ~np.asarray(budget.exhausted(times))
        self.round += 1
        selected = self._select(
            keys.choice(self._key, self.round), self._state, jnp.int32(self.round), present
        )
        selection, _ = check_selected(selected, self.config.cohort_size)
        self._pending = Selection(*map(np.asarray, selection))  # type: ignore[arg-type]
        active = np.asarray(self._pending.active)
        clients = np.asarray(self._pending.clients)[active]
        epsilon = np.asarray(budget.epsilon(times))[clients]
        return Choice(self.round, clients, np.asarray(self._pending.weights)[active], epsilon)

    def tell(
        self,
        seconds: Mapping[int, float],
        *,
        loss: Mapping[int, float] | None = None,
        square_loss: Mapping[int, float] | None = None,
        update: Mapping[int, ArrayLike] | None = None,
        failed: Mapping[int, float] | None = None,
        idle: Iterable[int] = (),
    ) -> None:
        """What came back of the round that was asked for.

        Args:
          seconds: that each client took which answered.
          loss: mean training loss of each, for a policy that reads it.
          square_loss: mean squared loss, likewise.
          update: the released update of each, flat, likewise.
          failed: seconds that the server waited in vain for each that did not answer: the policy
            learns that it is as slow. Of a chosen client that stands neither here nor in
            ``seconds`` it learns nothing, and may choose it again at once.
          idle: chosen clients that certainly released nothing. All other chosen ones count as
            having spent the budget of this round, also those that failed.

        Raises:
          ConfigError: for clients that were not chosen, seconds that are none, or a reading that
            the policy needs and that is missing; the round stays open.
        """
        if self._pending is None:
            raise ConfigError("nothing was asked: call ask first, then tell, once a round.")
        pending = self._pending
        slots = {
            int(k): i
            for i, k in enumerate(np.asarray(pending.clients))
            if bool(np.asarray(pending.active)[i])
        }
        took = {**seconds, **(failed or {})}
        named = {"seconds": seconds, "loss": loss, "square_loss": square_loss, "update": update,
                 "failed": failed}  # fmt: skip
        for name, values in named.items():
            self._check_chosen(name, values or (), slots)
        spared = set(self._numbers("idle", idle))
        self._check_chosen("idle", spared, slots)
        if self.config.policy.releases and seconds and loss is None and update is None:
            raise ConfigError(
                f"policy = {self.config.policy.name}: reads "
                f"{', '.join(self.config.policy.releases)}; tell it the loss or the update of each "
                "client too."
            )
        m = self.config.cohort_size
        latency = np.ones(m, np.float32)
        known, heard = np.zeros(m, bool), np.zeros(m, bool)
        losses = {"loss": np.ones(m, np.float32), "square_loss": np.ones(m, np.float32)}
        updates = np.zeros((m, self._update_size), np.float32)
        for client, slot in slots.items():
            if client not in took:
                continue
            taken = float(took[client])
            if not (np.isfinite(taken) and taken > 0):
                raise ConfigError(f"seconds[{client}] = {taken}: must be finite and > 0.")
            latency[slot] = max(taken, float(self.config.latency.min_latency))
            known[slot], heard[slot] = True, client in seconds
            if not heard[slot]:
                losses["loss"][slot] = losses["square_loss"][slot] = np.nan
                continue
            for name, values in (("loss", loss), ("square_loss", square_loss)):
                if values is not None:
                    losses[name][slot] = values.get(client, np.nan)
            if update is not None and client in update:
                updates[slot] = np.asarray(update[client], np.float32)
        observation = Observation(latency, losses["loss"], losses["square_loss"], updates, heard)  # type: ignore[arg-type]
        weights = np.where(known, pending.weights, 0.0).astype(np.float32)
        answered = Selection(jnp.asarray(pending.clients), jnp.asarray(weights))
        self._state = self._update(self._state, answered, observation)
        for client in slots:
            self.counts[client] += client not in spared
        self._pending = None

    def save(self, path: str | pathlib.Path) -> None:
        """Write all to a file, whole or not at all; between a round's tell and the next ask.

        Raises:
          ConfigError: while a round is open.
        """
        if self._pending is not None:
            raise ConfigError(f"round {self.round} is open: tell what came back of it, then save.")
        leaves = {f"state_{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(self._state))}
        path = pathlib.Path(path)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        with part.open("wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                config=np.asarray(config_file.dumps(self.config)),
                key=np.asarray(jax.random.key_data(self._key)),
                round=np.asarray(self.round),
                counts=self.counts,
                size=np.asarray(self._size),
                update_size=np.asarray(self._update_size),
                **leaves,
            )
        part.replace(path)

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Selector:
        """Go on from a file.

        Raises:
          ConfigError: if it cannot be read; a policy of one's own must be imported first.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                kept = dict(file)
            config = config_file.loads(str(kept["config"]))
        except (OSError, KeyError, ValueError) as error:
            raise ConfigError(f"{path}: is no saved selector ({error}).") from None
        made = cls(
            config,
            jax.random.key(0),
            data_size=kept["size"],
            update_size=int(kept["update_size"]),
        )
        made._key = jax.random.wrap_key_data(jnp.asarray(kept["key"]))
        made.round, made.counts = int(kept["round"]), kept["counts"]
        like, form = jax.tree.flatten(made._state)
        leaves = [jnp.asarray(kept[f"state_{i}"]) for i in range(len(like))]
        made._state = jax.tree.unflatten(form, leaves)
        return made

    def _context(self) -> Context:
        config, size = self._canonical, self._size
        num_clients = config.num_clients
        return Context(
            num_clients=num_clients,
            num_selected=config.cohort_size,
            num_rounds=config.num_rounds,
            update_size=self._update_size,
            num_features=config.latency.num_features,
            data_size=size,
            local_samples=size,
            share=size * (1 / jnp.sum(size)),
            reward=config.reward,
            privacy=config.privacy,
            min_latency=jnp.asarray(config.latency.min_latency),
            expected_speed=config.latency.expected_speed(num_clients),
            expected_latency=config.latency.expected_latency(num_clients),
        )

    def _numbers(self, name: str, clients: Iterable[int]) -> list[int]:
        numbers = [int(client) for client in clients]
        for client in numbers:
            if not 0 <= client < self.config.num_clients:
                raise ConfigError(
                    f"{name}: {client} is no client; they are 0 to {self.config.num_clients - 1}."
                )
        return numbers

    def _check_chosen(self, name: str, clients: Iterable[int], slots: Mapping[int, int]) -> None:
        for client in clients:
            if int(client) not in slots:
                raise ConfigError(
                    f"{name}: client {client} was not chosen in round {self.round}; it chose "
                    f"{', '.join(map(str, slots)) or 'nobody'}."
                )


def _sizes(data_size: ArrayLike | None, num_clients: int) -> Array:
    if data_size is None:
        return jnp.ones(num_clients)
    size = np.asarray(data_size, np.float32)
    if size.shape != (num_clients,) or not (np.isfinite(size) & (size > 0)).all():
        raise ConfigError(
            f"data_size has shape {size.shape}: must be [{num_clients}], samples > 0 of each "
            "client."
        )
    return jnp.asarray(size)
