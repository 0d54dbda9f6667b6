"""The keys of a run, by name: which stream a random number comes from, and how it is folded.

A run has one key, split into independent streams. ``world``, ``data``, ``model`` and ``inputs`` do
not depend on the policy, so two policies with one key meet one world. Within a stream a key is
folded with the round (from 1 on) and, where it is a client's, with the client's number. So what a
client draws does not depend on who is chosen beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:
    from jaxtyping import Key


class Streams(NamedTuple):
    """Independent key streams of a run.

    Attributes:
      world: latencies, availability traces, availability and drop-outs of every round.
      data: the partition: who holds which samples, of which quality.
      model: the initial model.
      policy: a policy's questions and choices.
      training: the order of each client's samples; mini-batches of its answers.
      privacy: each client's noise.
      inputs: the noise of low-quality inputs, the same in every round.
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
    """The keys of a round.

    Attributes:
      latency: latencies of all clients, and the features that they report before the round.
      availability: who is available.
      policy: the policy's question and its choice.
      training: of the cohort; a client draws the words of its number.
      privacy: of the cohort, to be folded by client.
      availability_trace: the step of the availability trace.
      dropout: who would be lost within the round, if chosen.
      answers: to the policy's question, to be folded by client.
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
    """Derive the keys of round t >= 1.

    In the stream ``world`` round t has the numbers 2 t and 2 t + 1. Three keys are folded with 0 or
    1, numbers that no round has, before they are folded with t. All folds are two calls of
    threefry, as each call is a loop that XLA compiles separately.
    """
    impl = jax.random.key_impl(run.world)

    @jax.vmap
    def fold(words: Array, number: Array) -> Array:
        key = jax.random.wrap_key_data(words, impl=impl)
        return jax.random.key_data(jax.random.fold_in(key, number))

    # JAX's check for reused keys takes a stack of keys for their use, and allows one of words.
    words = jax.tree.map(jax.random.key_data, run)
    before_rounds = fold(
        jnp.stack([words.world, words.world, words.training]), jnp.array([0, 1, 0])
    )
    streams = jnp.stack([words.world, words.world, words.policy, words.training, words.privacy])
    t = jnp.asarray(round)
    numbers = jnp.stack([2 * t, 2 * t + 1, t, t, t, t, t, t])
    rows = fold(jnp.concatenate([streams, before_rounds]), numbers)
    return RoundKeys(*(jax.random.wrap_key_data(row, impl=impl) for row in rows))


def first_availability(world: Array) -> Array:
    """Derive the key of the availability trace's first state, as of round 0."""
    return jax.random.fold_in(jax.random.fold_in(world, 0), 0)


def budgets(world: Array) -> Array:
    """Derive the key of the clients' budgets. No round has this number."""
    return jax.random.fold_in(world, 2**32 - 1)


def choice(policy: Array, round: Array | int) -> Array:
    """Derive the key of a round's choice, of a policy that asks nobody."""
    return jax.random.fold_in(policy, round)


def question_and_choice(of_round: Array) -> tuple[Array, Array]:
    """Split a round's key into those of a policy's question and of its choice afterwards."""
    question, choice = jax.random.split(of_round)
    return question, choice


def of_clients(key: Array, clients: Array) -> Array:
    """Derive a key for each client [n] from the key of a round, by the client's number."""
    return jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)
