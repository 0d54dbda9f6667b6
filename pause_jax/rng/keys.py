"""Random keys for a run, derived from named streams.

A run splits its key into independent streams. ``world``, ``data``, ``model`` and ``inputs`` do not
depend on the policy, so runs with the same key have the same latencies, data and initial model.
Within a stream, we fold the round number (starting at 1) into the key. For a client's key, we also
fold in the client's number. A client's draws therefore do not depend on the rest of the cohort.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Key


class Streams(NamedTuple):
    """Independent key streams for a run.

    Attributes:
      world: latencies, availability and drop-outs in every round, and client budgets.
      data: partition of samples among clients, data quality, and held-out samples.
      model: initial model.
      policy: the policy's queries and choices.
      training: each client's sample order and dropout masks, and mini-batches for query answers.
      privacy: noise added to each client's update.
      inputs: noise added to low-quality inputs, the same in every round.
    """

    world: Key[Array, ""]
    data: Key[Array, ""]
    model: Key[Array, ""]
    policy: Key[Array, ""]
    training: Key[Array, ""]
    privacy: Key[Array, ""]
    inputs: Key[Array, ""]


def streams(key: Array) -> Streams:
    """Split a run's key into its streams."""
    return Streams(*jax.random.split(key, len(Streams._fields)))


class RoundKeys(NamedTuple):
    """Random keys for one round.

    Attributes:
      latency: all clients' latencies and features, and the latency model's drop-outs.
      availability: all clients' random availability (see ``SimConfig.availability``).
      policy: the policy's query and choice.
      training: the cohort's sample order and dropout masks, drawn separately for each client.
      privacy: noise added to the cohort's updates. Each client's number is folded into this key.
      availability_trace: the availability trace's transition in this round.
      dropout: all clients' random drop-outs (see ``SimConfig.dropout``).
      answers: mini-batches for answers to the policy's query, drawn separately for each client.
    """

    latency: Key[Array, ""]
    availability: Key[Array, ""]
    policy: Key[Array, ""]
    training: Key[Array, ""]
    privacy: Key[Array, ""]
    availability_trace: Key[Array, ""]
    dropout: Key[Array, ""]
    answers: Key[Array, ""]


def of_round(run: Streams, round: Array | int) -> RoundKeys:
    """Derive the keys for round t >= 1.

    Round t folds 2 t and 2 t + 1 into the ``world`` stream's key. For the last three fields of
    ``RoundKeys``, we fold an unused number and then t into the stream's key. XLA compiles each
    threefry call to a separate loop, so all folds are batched into two calls.
    """
    impl = jax.random.key_impl(run.world)

    @jax.vmap
    def fold(words: Array, number: Array) -> Array:
        key = jax.random.wrap_key_data(words, impl=impl)
        return jax.random.key_data(jax.random.fold_in(key, number))

    # Stack raw key data, because JAX's key-reuse checker treats stacking typed keys as a use.
    words = jax.tree.map(jax.random.key_data, run)
    roots = jnp.stack([words.world, words.world, words.training])
    before_rounds = fold(roots, jnp.array([0, 1, 0]))
    streams = jnp.stack([words.world, words.world, words.policy, words.training, words.privacy])
    t = jnp.asarray(round)
    numbers = jnp.stack([2 * t, 2 * t + 1, t, t, t, t, t, t])
    rows = fold(jnp.concatenate([streams, before_rounds]), numbers)
    return RoundKeys(*(jax.random.wrap_key_data(row, impl=impl) for row in rows))


def first_availability(world: Array) -> Array:
    """Derive the key for the availability trace's initial state (the trace's key for round 0)."""
    return jax.random.fold_in(jax.random.fold_in(world, 0), 0)


def local_work(latency: Array) -> Array:
    """Derive the key for a round's local work factors from the round's latency key."""
    return jax.random.fold_in(jax.random.clone(latency), 2**32 - 1)


def budgets(world: Array) -> Array:
    """Derive the key for drawing client budgets, by folding in a number that no round uses."""
    return jax.random.fold_in(world, 2**32 - 1)


def client_order(world: Array) -> Array:
    """Derive the key for ordering the clients, by folding in a number that no round uses."""
    return jax.random.fold_in(world, 2**32 - 2)


def holdout(data: Array) -> Array:
    """Derive the key for drawing held-out samples, by folding in an unused number."""
    return jax.random.fold_in(data, 2**32 - 1)


def trained_part(model: Array) -> Array:
    """Derive the key for weights that are added to a model, by folding in an unused number."""
    return jax.random.fold_in(model, 2**32 - 1)


def choice(policy: Array, round: Array | int) -> Array:
    """Derive the key that a policy without queries uses to make a round's choice."""
    return jax.random.fold_in(policy, round)


def question_and_choice(of_round: Array) -> tuple[Array, Array]:
    """Split a round's policy key into a query key and a choice key."""
    question, choice = jax.random.split(of_round)
    return question, choice


def of_clients(key: Array, clients: Array) -> Array:
    """Derive one key for each of the ``clients`` [n] by folding their numbers into ``key``."""
    return jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)
