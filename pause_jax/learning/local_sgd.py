"""The learner of local SGD: its state, a round of training, answers and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit.protocol import Selection
from pause_jax.learning.cohort import kept_in_training
from pause_jax.learning.evaluation import evaluate, local_loss, moved_loss
from pause_jax.learning.fedavg import RoundTraining, mean_update, train_cohort
from pause_jax.learning.learner import LearnerState, Release, StaleUpdates, Trained, trained_part
from pause_jax.learning.partition import PartitionConfig
from pause_jax.rng import draws, keys

if TYPE_CHECKING:
    import optax

# Clients whose losses are computed side by side; bounds the memory when many are asked.
QUERY_BATCH = 16


class LocalSgd(NamedTuple):
    """The functions of the learner that ``Learning.build`` returns."""

    training: RoundTraining  # the fixed parts, with the client optimiser of round 1
    optimizer_at: Callable[[Array], optax.GradientTransformation]  # (round) -> the client optimiser
    partition: PartitionConfig  # who gets which samples
    num_samples: int  # samples that are shared out
    num_clients: int  # K
    largest: int  # bound on a client's number of samples
    keeps_state: bool  # whether clients keep their optimiser state from round to round
    scored: slice  # test samples that the model is scored on; the server holds those after them

    def init(self, streams: keys.Streams) -> LearnerState:
        local, data = self.training.local, self.training.local.dataset
        partition = self.partition.assign(
            streams.data,
            data.y_train,
            self.num_samples,
            self.num_clients,
            data.num_classes,
            data.clients,
        )
        variables = local.network.init(streams.model, data.to_input(data.x_train[:1]))
        clients, server = None, self.training.server
        if self.keeps_state:
            fresh = local.optimizer.init(trained_part(variables))
            shape = (self.num_clients,)
            clients = jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *x.shape)), fresh)
        return LearnerState(
            partition,
            variables,
            clients,
            inputs=streams.inputs,
            rounds=jnp.zeros((), jnp.int32),
            server=None if server is None else server.init(variables["params"]),
        )

    def train(
        self, key: Array, state: LearnerState, selection: Selection, release: Release
    ) -> tuple[LearnerState, Trained]:
        return self.train_stale(key, state, selection, release)[:2]

    def train_stale(
        self,
        key: Array,
        state: LearnerState,
        selection: Selection,
        release: Release,
        is_stale: Array | None = None,
        stale: StaleUpdates | None = None,
    ) -> Any:
        round = jnp.asarray(state.rounds) + 1
        now = self.training.local._replace(optimizer=self.optimizer_at(round))
        training, before = self.training._replace(local=now), state._replace(rounds=round)
        return train_cohort(training, key, before, selection, release, is_stale, stale)

    def ask(self, key: Array, state: LearnerState, clients: Array, batch_size: int | None) -> Array:
        def one(asked: tuple[Array, Array | None]) -> Array:
            client, bits = asked
            local, model, inputs = self.training.local, state.model, state.inputs
            return local_loss(local, model, state.partition, client, bits, inputs, self.largest)

        bits = None if batch_size is None else draws.bits_of(key, clients, batch_size)
        return lax.map(one, (clients, bits), batch_size=QUERY_BATCH)

    def evaluate(self, state: LearnerState) -> dict[str, Array]:
        local = self.training.local
        return evaluate(local.network, local.task, state.model, local.dataset, self.scored)

    def server_loss(self, state: LearnerState, updates: Array, weights: Array) -> Array:
        held, move = slice(self.scored.stop, None), mean_update(updates, weights)
        return moved_loss(self.training.local, state.model, move, held)

    def kept(self, state: LearnerState) -> int:
        return kept_in_training(self.training.local, state.model)
