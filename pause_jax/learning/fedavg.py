"""Federated averaging: a cohort trains, its updates are released, the server averages (2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from pause_jax.bandit.protocol import Selection, store_active
from pause_jax.learning.client import LocalLoss, LocalTraining, Slot, local_steps, train_locally
from pause_jax.learning.cohort import Execution, fitting, kept_in_training, map_clients
from pause_jax.learning.learner import LearnerState, Release, Trained, Variables, trained_part
from pause_jax.learning.optimizer import server_step
from pause_jax.learning.staleness import with_stale
from pause_jax.rng import draws, keys

if TYPE_CHECKING:
    import optax

    from pause_jax.learning.learner import StaleUpdates


class RoundTraining(NamedTuple):
    """The fixed parts of a round of training."""

    local: LocalTraining  # of the clients
    execution: Execution  # how the cohort is trained
    server: optax.GradientTransformation | None = None  # None adds the mean update
    stale_damping: Array | float | None = None  # see Learning


def train_cohort(
    training: RoundTraining,
    key: Array,
    state: LearnerState,
    selection: Selection,
    release: Release,
    is_stale: Array | None = None,
    stale: StaleUpdates | None = None,
) -> tuple[LearnerState, Trained, StaleUpdates | None]:
    """A round of training.

    Args:
      training: the fixed parts.
      key: of this round's training; a client draws the words of its number.
      state: before the round.
      selection: the cohort and its aggregation weights; a slot of weight 0 sends nothing.
      release: what leaves the clients of their flat updates.
      is_stale: bool [m], slots whose update is averaged in the next round; None for none.
      stale: updates that are averaged in this round, with their own weights.

    Returns:
      (state after it, what the server saw, stale updates for the next round).
    """
    clients, active = selection.clients, selection.active
    updates, opt_states, loss = _train_clients(training, key, state, selection)
    # Not inside the map: XLA fuses the concatenation into the write of the map's result, which
    # took most of the time of a round with 1.6 million parameters.
    released = release(jax.vmap(lambda update: ravel_pytree(update)[0])(updates["params"]))
    # All other collections leave without noise: Result.unnoised names them.
    updates = {**updates, "params": released}

    loss = jax.tree.map(lambda x: jnp.where(active, x, 0.0), loss)
    mean = jnp.sum(jnp.where(active, selection.weights * loss.mean, 0.0))
    weights = selection.weights
    if stale is not None and is_stale is not None:
        beta = training.stale_damping
        updates, weights, stale = with_stale(updates, weights, is_stale, stale, beta)
    variables, server = averaged(training.server, state, updates, weights)

    def store(kept: Array, new: Array) -> Array:
        return store_active(kept, clients, new, active)

    kept = None if state.clients is None else jax.tree.map(store, state.clients, opt_states)
    state = state._replace(variables=variables, server=server, clients=kept)
    shown = Trained(loss.mean, loss.square, released, jnp.where(jnp.any(active), mean, jnp.nan))
    return state, shown, stale


def _train_clients(
    training: RoundTraining, key: Array, state: LearnerState, selection: Selection
) -> tuple[Variables, Any, LocalLoss]:
    """Updates, kept optimiser states (None if none are kept) and losses, leaves [m, ...]."""
    local, variables, partition = training.local, state.model, state.partition
    clients, keep = selection.clients, state.clients is not None
    fresh = local.optimizer.init(trained_part(variables))

    def train_one(slot: Slot, bound: Array | None) -> Any:
        slot = slot._replace(opt_state=slot.opt_state if keep else fresh)
        with jax.default_matmul_precision(training.execution.precision):
            update, opt_state, loss = train_locally(
                local, variables, partition, slot, state.inputs, bound
            )
        return update, opt_state if keep else None, loss

    steps = None
    if local.equal_steps is None:
        steps = jnp.where(selection.active, local_steps(local, partition.size[clients]), 0)
    slots = Slot(
        client=clients,
        bits=draws.bits_of(key, clients, 1 + local.max_samples),
        dropout=keys.of_clients(key, clients) if local.network.draws else None,
        opt_state=jax.tree.map(lambda x: x[clients], state.clients),
    )
    execution = training.execution
    batch = execution.client_batch or fitting(kept_in_training(local, variables))
    return map_clients(train_one, slots, steps, batch, execution.mesh)


def averaged(
    server: optax.GradientTransformation | None, state: LearnerState, updates: Any, weights: Array
) -> tuple[Variables, Any]:
    """The new model and server state, from updates with flat ``params`` and their weights [m]."""
    variables = state.model
    mean = jax.tree.map(lambda x: mean_update(x, weights), updates)
    mean["params"] = ravel_pytree(variables["params"])[1](mean["params"])
    averaged, server_state = added(variables, mean), state.server
    if server is not None:
        received = jnp.any(weights > 0)
        averaged["params"], server_state = server_step(
            server, variables["params"], server_state, mean["params"], received
        )
    return averaged, server_state


def mean_update(updates: Array, weights: Array) -> Array:
    """The weighted sum of one leaf's updates [m, ...], of slots with a weight > 0.

    An empty slot's update does not reach the sum even if it is not finite.
    """
    taken = jnp.where(weights.reshape(-1, *[1] * (updates.ndim - 1)) > 0, updates, 0.0)
    return jnp.tensordot(weights, taken, axes=1)


def added(variables: Variables, mean: Variables) -> Variables:
    """The global model with the weighted sum of the updates added: FedAvg, (2)."""
    return jax.tree.map(lambda old, move: (old + move).astype(old.dtype), variables, mean)
