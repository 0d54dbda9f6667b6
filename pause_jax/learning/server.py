"""Server-side federated averaging, from cohort training to the server step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from pause_jax.bandit.protocol import Selection, store_active
from pause_jax.learning.client import Keys, LocalLoss, LocalTraining, Slot, train_locally
from pause_jax.learning.cohort import Execution, clients_that_fit, map_clients, training_bytes
from pause_jax.learning.evaluation import evaluate, evaluate_clients, local_loss
from pause_jax.learning.learner import (
    Learner,
    LearnerState,
    Release,
    StaleUpdates,
    Trained,
    Variables,
    sent_part,
    trained_part,
)
from pause_jax.learning.optimizer import server_step
from pause_jax.learning.partition import PartitionConfig, hold_out
from pause_jax.learning.trained import with_frozen
from pause_jax.learning.work import Steps, gradient_weights
from pause_jax.rng import draws, keys

if TYPE_CHECKING:
    import optax

# Maximum number of queried clients whose losses are computed in parallel, to bound memory.
QUERY_BATCH = 16
# Key of the sums of gradient weights, |a_i|_1, float [m], in the dict of normalised updates.
WEIGHT = "gradient_weight"
# A stale update's age in rounds under ``stale_updates="next"``.
_AGE = 1


class FederatedAveraging(NamedTuple):
    """Implementation of the learner returned by ``Learning.build``."""

    local: LocalTraining  # settings, with the client optimiser for round 1
    optimizer_at: Callable[[Array], optax.GradientTransformation]  # (round) -> client optimiser
    execution: Execution
    server: optax.GradientTransformation | None  # None to add the mean update
    partition: PartitionConfig
    num_samples: int  # number of samples to partition
    num_clients: int  # K
    equal_work: bool  # whether all local work factors are 1
    keeps_state: bool  # whether clients keep their optimiser state between rounds
    scored: slice  # test samples for metrics (later samples are for validation)
    holdout: float = 0.0  # share of each client's samples that is held out

    def init(self, streams: keys.Streams) -> LearnerState:
        local = self.local
        data = local.dataset
        partition = self.partition.assign(streams.data, data, self.num_samples, self.num_clients)
        if self.holdout:
            partition = hold_out(keys.holdout(streams.data), partition, self.holdout)
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
            work=None if self.equal_work else jnp.ones(self.num_clients),
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
            return local_loss(self.local, state.model, state.partition, client, bits, state.inputs)

        bits = None if batch_size is None else draws.bits_of(key, clients, batch_size)
        return lax.map(one, (clients, bits), batch_size=QUERY_BATCH)

    def evaluate(self, state: LearnerState) -> dict[str, Array]:
        return self._evaluate(state.model, self.scored)

    def _evaluate(self, variables: Variables, part: slice) -> dict[str, Array]:
        local = self.local
        return evaluate(local.network, local.task, variables, local.dataset, part)

    def evaluate_clients(self, state: LearnerState) -> dict[str, Array]:
        # A client holds out at most one more sample than its exact share.
        most = min(self.num_samples, int(self.holdout * self.num_samples) + self.num_clients)
        return evaluate_clients(self.local, state, most)

    def server_loss(self, state: LearnerState, updates: Array, weights: Array) -> Array:
        params, restored = ravel_pytree(state.model["params"])
        moved = {**state.model, "params": restored(params + mean_update(updates, weights))}
        return self._evaluate(moved, slice(self.scored.stop, None))["test_loss"]

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
    """Train a cohort, release its updates, and return (state, Trained, updates [m, ...]).

    Only ``state.clients`` changes. The server receives the returned updates, with ``params``
    flattened to [m, d]. In a slot with weight 0, ``params`` is 0 and other entries are undefined.
    """
    active = selection.active
    updates, opt_states, loss = _train_clients(local, execution, key, state, selection)
    # Flattening inside ``map_clients`` took most of a round's time with 1.6 million parameters.
    released = release(jax.vmap(lambda update: ravel_pytree(update)[0])(updates["params"]))
    # The leaves of all other collections are sent without noise and listed in Result.unnoised.
    updates = {**updates, "params": released}

    loss = jax.tree.map(lambda x: jnp.where(active, x, 0.0), loss)
    mean = jnp.sum(jnp.where(active, selection.weights * loss.mean, 0.0))
    if state.clients is not None:
        stored = jax.tree.map(
            lambda old, new: store_active(old, selection.clients, new, active),
            state.clients, opt_states,
        )  # fmt: skip
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
    """Train the cohort and return updates, optimiser states (None if not kept) and losses."""
    batch = execution.client_batch or clients_that_fit(training_bytes(local, state.model))
    network, variables = with_frozen(local.network, state.model)
    local = local._replace(network=network)
    partition = state.partition
    clients = selection.clients
    keeps_state = state.clients is not None
    fresh = local.optimizer.init(trained_part(variables))
    train_keys = Keys(key, state.inputs)
    factors = None if state.work is None else state.work[clients]
    # If all clients take the same number of steps, the count is not vmapped, so no step is masked.
    own = local.work.steps(local.max_samples if local.equal else partition.size[clients], factors)
    beside = own._replace(total=jnp.where(selection.active, own.total, 0))

    def train_one(work: tuple[Slot, Steps | None], beside: Steps | None) -> Any:
        slot, steps = work
        slot = slot._replace(opt_state=slot.opt_state if keeps_state else fresh)
        steps = own if steps is None else steps
        with jax.default_matmul_precision(execution.precision):
            update, opt_state, loss = train_locally(
                local, variables, partition, slot, steps, train_keys, beside
            )
        return update, opt_state if keeps_state else None, loss

    slots = Slot(clients, jax.tree.map(lambda x: x[clients], state.clients))
    each, others = (None, None) if local.equal else (own, beside)
    updates, opt_states, loss = map_clients(train_one, (slots, each), others, batch, execution.mesh)
    if local.normalised:
        total = jnp.broadcast_to(own.total, clients.shape)
        weights = gradient_weights(local.optimizer, local.proximal, local.work.max_steps)[total]
        divided = jax.tree.map(
            lambda x: x / weights.reshape(-1, *[1] * (x.ndim - 1)), trained_part(updates)
        )
        updates = {**updates, **divided, WEIGHT: weights}
    return updates, opt_states, loss


def averaged(
    server: optax.GradientTransformation | None, state: LearnerState, updates: Any, weights: Array
) -> tuple[Variables, Any]:
    """Return the model and the server optimiser's state after a server step."""
    variables = state.model
    mean = jax.tree.map(lambda x: mean_update(x, weights), updates)
    if WEIGHT in mean:
        effective = mean.pop(WEIGHT) / jnp.maximum(jnp.sum(weights), 1e-30)
        mean |= jax.tree.map(lambda x: effective * x, trained_part(mean))
    mean["params"] = ravel_pytree(variables["params"])[1](mean["params"])
    after = {**variables, **added(sent_part(variables), mean)}
    server_state = state.server
    if server is not None:
        received = jnp.any(weights > 0)
        after["params"], server_state = server_step(
            server, variables["params"], server_state, mean["params"], received
        )
    return after, server_state


def mean_update(updates: Array, weights: Array) -> Array:
    """Return the weighted sum of one leaf's updates [m, ...] over all slots with weight > 0."""
    taken = jnp.where(weights.reshape(-1, *[1] * (updates.ndim - 1)) > 0, updates, 0.0)
    return jnp.tensordot(weights, taken, axes=1)


def added(variables: Variables, mean: Variables) -> Variables:
    """Return the global model plus the updates' weighted sum (Eq. (2) of PAUSE)."""
    return jax.tree.map(lambda old, move: (old + move).astype(old.dtype), variables, mean)


def no_updates(state: LearnerState, size: int, *, normalised: bool = False) -> Variables:
    """Return ``size`` all-zero updates with leaves [size, ...] and flat ``params`` [size, d]."""
    params, _ = ravel_pytree(state.model["params"])
    model = {**sent_part(state.model), "params": params}
    if normalised:
        model[WEIGHT] = jnp.zeros(())
    return jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), model)


def no_stale_updates(learner: Learner, state: LearnerState, num_selected: int) -> StaleUpdates:
    """Return all-zero stale updates and weights for the start of a run."""
    assert learner.deferred is not None
    weights = jnp.zeros(num_selected, jnp.float32)  # float32 like selection.weights, even under x64
    return StaleUpdates(learner.deferred.none(state, num_selected), weights)


def with_stale(
    updates: Any, weights: Array, is_stale: Array, stale: StaleUpdates, beta: Array | float | None
) -> tuple[Any, Array, StaleUpdates]:
    """Append the previous stale updates and return (updates [2 m, ...], weights, new StaleUpdates).

    ``is_stale``, bool [m], marks updates that miss this round. Weights sum to 1 unless all are 0.
    """
    now, before = jnp.where(is_stale, 0.0, weights), stale.weights
    if beta is not None:
        fresh, old = updates["params"], stale.updates["params"]
        before = before * damping(beta, fresh, now > 0, old, before > 0)
    both = jnp.concatenate([now, before])
    total = jnp.sum(both)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), updates, stale.updates)
    return joined, both / jnp.where(total > 0, total, 1.0), StaleUpdates(updates, weights - now)


def damping(beta: Array | float, fresh: Array, in_time: Array, stale: Array, due: Array) -> Array:
    """Return the factor applied to each stale update's weight, float [m], as in the REFL paper.

    The factor is ``(1 - beta) / (age + 1) + beta (1 - exp(-L / max L))``. The relative deviation of
    a stale update s is ``L = |u - (s + n u) / (n + 1)|^2 / |u|^2``, where u is the mean of the n
    ``fresh`` updates marked ``in_time``. L is 0 if u is 0 or the update is not ``due``.
    """
    number = jnp.sum(in_time).astype(fresh.dtype)
    mean = jnp.sum(jnp.where(in_time[:, None], fresh, 0.0), axis=0) / jnp.maximum(number, 1)
    # Averaging s with the n fresh updates moves their mean u by (s - u) / (n + 1).
    apart = jnp.sum(jnp.square(mean[None, :] - jnp.where(due[:, None], stale, 0.0)), axis=1)
    scale = jnp.sum(jnp.square(mean)) * (number + 1) ** 2
    moves = jnp.where(due & (scale > 0), apart / jnp.where(scale > 0, scale, 1.0), 0.0)
    farthest = jnp.max(moves)
    boost = 1 - jnp.exp(-moves / jnp.where(farthest > 0, farthest, 1.0))
    return (1 - beta) / (_AGE + 1) + beta * boost
