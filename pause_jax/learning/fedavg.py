"""Federated averaging: a cohort trains, its updates are released, the server averages (2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from pause_jax.bandit import Selection, store_active
from pause_jax.learning.client import LocalTraining, kept_in_training, local_steps, train_locally
from pause_jax.learning.cohort import Execution, fitting, map_clients
from pause_jax.learning.learner import Held, LearnerState, Release, Trained, trained_part
from pause_jax.learning.optimizer import server_step
from pause_jax.learning.server import added, mean_update
from pause_jax.rng import draws, keys

if TYPE_CHECKING:
    from jaxtyping import Int, Key, UInt32


class Slot(NamedTuple):
    """What one slot of the cohort trains with; leaves [m, ...] for all of them."""

    client: Int[Array, "*m"]
    lots: UInt32[Array, "*m lots"]
    dropping: Key[Array, "*m"] | None
    moments: Any


def train_cohort(
    training: LocalTraining,
    how: Execution,
    key: Array,
    state: LearnerState,
    selection: Selection,
    release: Release,
    server: optax.GradientTransformation | None = None,
    late: Array | None = None,
    held: Held | None = None,
) -> tuple[LearnerState, Trained, Held | None]:
    """A round of training.

    Args:
      training: the fixed parts of local training.
      how: how the cohort is trained.
      key: of this round's training, folded by client.
      state: before the round.
      selection: the cohort and its aggregation weights; a slot of weight 0 sends nothing.
      release: what leaves the clients of their flat updates.
      server: the server's optimiser; None adds the mean update.
      late: bool [m], slots whose update is averaged in the next round; None for none.
      held: those of the round before, averaged in this one with the weights that they had.

    Returns:
      (state after it, what the server saw, what is held).
    """
    clients, active = selection.clients, selection.active
    variables, partition, keep = state.model, state.partition, state.clients is not None
    fresh = training.optimizer.init(trained_part(variables))
    own = jax.tree.map(lambda x: x[clients], state.clients)

    def train_one(slot: Slot, bound: Array | None) -> Any:
        update, moments, loss = train_locally(
            training,
            variables,
            slot.moments if keep else fresh,
            partition,
            slot.client,
            slot.lots,
            state.inputs,
            bound,
            slot.dropping,
        )
        return update, moments if keep else None, loss

    steps = None
    if training.equal_steps is None:
        steps = jnp.where(active, local_steps(training, partition.size[clients]), 0)
    lots = draws.bits_of(key, clients, 1 + training.max_samples)
    dropping = keys.of_clients(key, clients) if training.network.draws else None
    slots = Slot(clients, lots, dropping, own)
    batch = how.client_batch or fitting(kept_in_training(training, variables))
    updates, moments, loss = map_clients(train_one, slots, steps, batch, how.mesh)

    _, unravel = ravel_pytree(variables["params"])
    # Not inside the map: XLA fuses the concatenation into the write of the map's result, which
    # took most of the time of a round with 1.6 million parameters.
    released = release(jax.vmap(lambda update: ravel_pytree(update)[0])(updates["params"]))
    # All other collections leave in the clear: Result.unnoised names them.
    updates = {**updates, "params": released}

    def store(kept: Array, new: Array) -> Array:
        return store_active(kept, clients, new, active)

    loss = jax.tree.map(lambda x: jnp.where(active, x, 0.0), loss)
    mean = jnp.sum(jnp.where(active, selection.weights * loss.mean, 0.0))
    weights = selection.weights
    if held is not None and late is not None:
        updates, weights, held = _with_held(updates, weights, late, held)
    mean_of = jax.tree.map(lambda x: mean_update(x, weights), updates)
    mean_of["params"] = unravel(mean_of["params"])
    averaged, server_state = added(variables, mean_of), state.server
    if server is not None:
        heard = jnp.any(weights > 0)
        averaged["params"], server_state = server_step(
            server, variables["params"], server_state, mean_of["params"], heard
        )
    state = state._replace(
        variables=averaged,
        server=server_state,
        clients=jax.tree.map(store, state.clients, moments) if keep else None,
    )
    shown = Trained(loss.mean, loss.square, released, jnp.where(jnp.any(active), mean, jnp.nan))
    return state, shown, held


def _with_held(updates: Any, weights: Array, late: Array, held: Held) -> tuple[Any, Array, Held]:
    """What is averaged now, those in time and those held [2 m], and what is held next.

    The weights of what is averaged are scaled to a sum of one.
    """
    now = jnp.where(late, 0.0, weights)
    both = jnp.concatenate([now, held.weights])
    total = jnp.sum(both)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), updates, held.updates)
    return joined, both / jnp.where(total > 0, total, 1.0), Held(updates, weights - now)


def nothing_held(state: LearnerState, num_selected: int) -> Held:
    """What is held before round 1."""
    params, _ = ravel_pytree(state.model["params"])
    model = {**state.model, "params": params}
    like = jax.tree.map(lambda x: jnp.zeros((num_selected, *x.shape), x.dtype), model)
    return Held(like, jnp.zeros(num_selected))
