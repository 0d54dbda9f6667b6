"""Server side of learning: a cohort's training and release, the average, and late updates.

Federated averaging is PAUSE (2). The weights of late updates are REFL's (Abdelmoniem et al., "REFL:
resource-efficient federated learning", EuroSys 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from pause_jax.bandit.protocol import Selection, store_active
from pause_jax.learning.client import LocalLoss, LocalTraining, Slot, local_steps, train_locally
from pause_jax.learning.cohort import Execution, clients_that_fit, map_clients, training_bytes
from pause_jax.learning.evaluation import evaluate, local_loss, moved_loss
from pause_jax.learning.learner import (
    Learner,
    LearnerState,
    Release,
    StaleUpdates,
    Trained,
    Variables,
    trained_part,
)
from pause_jax.learning.optimizer import server_step
from pause_jax.learning.partition import PartitionConfig
from pause_jax.rng import draws, keys

if TYPE_CHECKING:
    import optax

# Clients whose losses are computed side by side; bounds the memory when many are asked.
QUERY_BATCH = 16
# Rounds by which an update of ``stale_updates="next"`` is late.
_AGE = 1


class FederatedAveraging(NamedTuple):
    """The functions of the learner that ``Learning.build`` returns."""

    local: LocalTraining  # the clients' part, with the optimiser of round 1
    optimizer_at: Callable[[Array], optax.GradientTransformation]  # (round) -> client optimiser
    execution: Execution  # how a cohort is trained
    server: optax.GradientTransformation | None  # None adds the mean update
    partition: PartitionConfig  # who gets which samples
    num_samples: int  # samples that are shared out
    num_clients: int  # K
    largest: int  # bound on a client's number of samples
    keeps_state: bool  # whether clients keep their optimiser state from round to round
    scored: slice  # test samples that the model is scored on; the server holds those after them

    def init(self, streams: keys.Streams) -> LearnerState:
        local = self.local
        data = local.dataset
        partition = self.partition.assign(streams.data, data, self.num_samples, self.num_clients)
        variables = local.network.init(streams.model, data.to_input(data.x_train[:1]))
        clients = None
        if self.keeps_state:
            fresh = local.optimizer.init(trained_part(variables))
            clients = jax.tree.map(
                lambda x: jnp.broadcast_to(x, (self.num_clients, *x.shape)), fresh
            )
        return LearnerState(
            partition,
            variables,
            clients,
            inputs=streams.inputs,
            rounds=jnp.zeros((), jnp.int32),
            server=None if self.server is None else self.server.init(variables["params"]),
        )

    def train(
        self, key: Array, state: LearnerState, selection: Selection, release: Release
    ) -> tuple[LearnerState, Trained]:
        state, trained, updates = self.train_cohort(key, state, selection, release)
        return self.average(state, updates, selection.weights), trained

    def train_cohort(
        self, key: Array, state: LearnerState, selection: Selection, release: Release
    ) -> tuple[LearnerState, Trained, Any]:
        local = self.local._replace(optimizer=self.optimizer_at(jnp.asarray(state.rounds) + 1))
        return train_cohort(local, self.execution, key, state, selection, release)

    def average(self, state: LearnerState, updates: Any, weights: Array) -> LearnerState:
        variables, server = averaged(self.server, state, updates, weights)
        rounds = jnp.asarray(state.rounds) + 1
        return state._replace(variables=variables, server=server, rounds=rounds)

    def ask(self, key: Array, state: LearnerState, clients: Array, batch_size: int | None) -> Array:
        def one(asked: tuple[Array, Array | None]) -> Array:
            client, bits = asked
            return local_loss(
                self.local, state.model, state.partition, client, bits, state.inputs, self.largest
            )

        bits = None if batch_size is None else draws.bits_of(key, clients, batch_size)
        return lax.map(one, (clients, bits), batch_size=QUERY_BATCH)

    def evaluate(self, state: LearnerState) -> dict[str, Array]:
        local = self.local
        return evaluate(local.network, local.task, state.model, local.dataset, self.scored)

    def server_loss(self, state: LearnerState, updates: Array, weights: Array) -> Array:
        held = slice(self.scored.stop, None)
        return moved_loss(self.local, state.model, mean_update(updates, weights), held)

    def client_bytes(self, state: LearnerState) -> int:
        return training_bytes(self.local, state.model)


def train_cohort(
    local: LocalTraining,
    execution: Execution,
    key: Array,
    state: LearnerState,
    selection: Selection,
    release: Release,
) -> tuple[LearnerState, Trained, Variables]:
    """Train a cohort and release its updates: (state, what the server saw, updates [m, ...]).

    Of the state only what clients keep changes. Updates are as the server received them, of
    ``params`` flat; a slot of weight 0 sends nothing.
    """
    active = selection.active
    updates, opt_states, loss = _train_clients(local, execution, key, state, selection)
    # Not inside the map: XLA fuses the concatenation into the write of the map's result, which
    # took most of the time of a round with 1.6 million parameters.
    released = release(jax.vmap(lambda update: ravel_pytree(update)[0])(updates["params"]))
    # All other collections leave without noise: Result.unnoised names them.
    updates = {**updates, "params": released}

    loss = jax.tree.map(lambda x: jnp.where(active, x, 0.0), loss)
    mean = jnp.sum(jnp.where(active, selection.weights * loss.mean, 0.0))
    if state.clients is not None:
        stored = jax.tree.map(
            lambda old, new: store_active(old, selection.clients, new, active),
            state.clients,
            opt_states,
        )
        state = state._replace(clients=stored)
    trained = Trained(loss.mean, loss.square, released, jnp.where(jnp.any(active), mean, jnp.nan))
    return state, trained, updates


def _train_clients(
    local: LocalTraining,
    execution: Execution,
    key: Array,
    state: LearnerState,
    selection: Selection,
) -> tuple[Variables, Any, LocalLoss]:
    """Return updates, optimiser states (None if none are kept) and losses, leaves [m, ...]."""
    variables = state.model
    partition = state.partition
    clients = selection.clients
    keeps_state = state.clients is not None
    fresh = local.optimizer.init(trained_part(variables))

    def train_one(slot: Slot, bound: Array | None) -> Any:
        slot = slot._replace(opt_state=slot.opt_state if keeps_state else fresh)
        with jax.default_matmul_precision(execution.precision):
            update, opt_state, loss = train_locally(
                local, variables, partition, slot, state.inputs, bound
            )
        return update, opt_state if keeps_state else None, loss

    steps = None
    if local.equal_steps is None:
        steps = jnp.where(selection.active, local_steps(local, partition.size[clients]), 0)
    slots = Slot(
        client=clients,
        bits=draws.bits_of(key, clients, 1 + local.max_samples),
        dropout=keys.of_clients(key, clients) if local.network.draws else None,
        opt_state=jax.tree.map(lambda x: x[clients], state.clients),
    )
    batch = execution.client_batch or clients_that_fit(training_bytes(local, variables))
    return map_clients(train_one, slots, steps, batch, execution.mesh)


def averaged(
    server: optax.GradientTransformation | None, state: LearnerState, updates: Any, weights: Array
) -> tuple[Variables, Any]:
    """Return the model and the server's state after a step, which adds the mean update if None."""
    variables = state.model
    mean = jax.tree.map(lambda x: mean_update(x, weights), updates)
    mean["params"] = ravel_pytree(variables["params"])[1](mean["params"])
    after, server_state = added(variables, mean), state.server
    if server is not None:
        received = jnp.any(weights > 0)
        after["params"], server_state = server_step(
            server, variables["params"], server_state, mean["params"], received
        )
    return after, server_state


def mean_update(updates: Array, weights: Array) -> Array:
    """Return the weighted sum of one leaf's updates [m, ...], of slots with a weight > 0.

    An empty slot's update does not reach the sum even if it is not finite.
    """
    taken = jnp.where(weights.reshape(-1, *[1] * (updates.ndim - 1)) > 0, updates, 0.0)
    return jnp.tensordot(weights, taken, axes=1)


def added(variables: Variables, mean: Variables) -> Variables:
    """Return the global model with the weighted sum of the updates added: FedAvg, (2)."""
    return jax.tree.map(lambda old, move: (old + move).astype(old.dtype), variables, mean)


def no_updates(state: LearnerState, size: int) -> Variables:
    """Return ``size`` updates of zeros, of ``params`` flat."""
    params, _ = ravel_pytree(state.model["params"])
    model = {**state.model, "params": params}
    return jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), model)


def no_stale_updates(learner: Learner, state: LearnerState, num_selected: int) -> StaleUpdates:
    """Return the stale updates before round 1: none."""
    assert learner.deferred is not None
    weights = jnp.zeros(num_selected, jnp.float32)  # as a selection's, under x64 too
    return StaleUpdates(learner.deferred.none(state, num_selected), weights)


def with_stale(
    updates: Any, weights: Array, is_stale: Array, stale: StaleUpdates, beta: Array | float | None
) -> tuple[Any, Array, StaleUpdates]:
    """Join the updates of a round with those that missed the round before.

    ``is_stale`` says which updates missed this round. The joined weights sum to one.
    """
    now, before = jnp.where(is_stale, 0.0, weights), stale.weights
    if beta is not None:
        before = before * damping(
            beta, updates["params"], now > 0, stale.updates["params"], before > 0
        )
    both = jnp.concatenate([now, before])
    total = jnp.sum(both)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), updates, stale.updates)
    return joined, both / jnp.where(total > 0, total, 1.0), StaleUpdates(updates, weights - now)


def damping(beta: Array | float, fresh: Array, in_time: Array, stale: Array, due: Array) -> Array:
    """Return factors of the weights of stale updates, next to fresh ones, which have 1; float [m].

    (1 - beta) / (age + 1) + beta (1 - exp(-L / max L)). L = |u - (s + n u) / (n + 1)|^2 / |u|^2
    says how far the stale update s moves the mean u of the n fresh ones; L = 0 without any. The
    exponential is not divided by ten, as it is in the program. Only the fresh updates ``in_time``
    and the stale ones ``due`` are averaged now.
    """
    number = jnp.sum(in_time).astype(fresh.dtype)
    mean = jnp.sum(jnp.where(in_time[:, None], fresh, 0.0), axis=0) / jnp.maximum(number, 1)
    # The moved mean differs from u by (u - s) / (n + 1).
    apart = jnp.sum(jnp.square(mean[None, :] - jnp.where(due[:, None], stale, 0.0)), axis=1)
    scale = jnp.sum(jnp.square(mean)) * (number + 1) ** 2
    moves = jnp.where(due & (scale > 0), apart / jnp.where(scale > 0, scale, 1.0), 0.0)
    farthest = jnp.max(moves)
    boost = 1 - jnp.exp(-moves / jnp.where(farthest > 0, farthest, 1.0))
    return (1 - beta) / (_AGE + 1) + beta * boost
