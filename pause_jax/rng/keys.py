"""The keys of a run, by name: which stream a random number comes from, and how it is folded.

A run has one key, split into independent streams. ``world``, ``data``, ``model`` and ``inputs`` do
not depend on the policy, so two policies with one key meet one world. Within a stream a key is
folded with the round (from 1 on) and, where it is a client's, with the client's number. So what a
client draws does not depend on who is chosen beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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
    """The streams of a run."""
    return Streams(*jax.random.split(key, len(Streams._fields)))


class RoundKeys(NamedTuple):
    """The keys of a round.

    Attributes:
      latency: latencies of all clients, and the features that they report before the round.
      availability: who is available.
      policy: the policy's question and its choice.
      training: of the cohort; a client draws the words of its number.
      privacy: of the cohort, to be folded by client.
      availability_trace: None, as the next two, in a run that has no use for any of the three.
      dropout: who would be lost within the round, if chosen.
      answers: to the policy's question, to be folded by client.
    """

    latency: Key[Array, ""]
    availability: Key[Array, ""]
    policy: Key[Array, ""]
    training: Key[Array, ""]
    privacy: Key[Array, ""]
    availability_trace: Any = None
    dropout: Any = None
    answers: Any = None


def of_rounds(run: Streams, rounds: Array, *, rare: bool) -> tuple[Array, ...]:
    """The data of the keys of many rounds at once, rows for :func:`of_round`, as separate draws
    would each be a loop to compile: uint32 [R, 5, W] and, if asked for, [R, 3, W] of the rare ones.
    """
    world, policy, training, privacy = map(
        jax.random.key_data, (run.world, run.policy, run.training, run.privacy)
    )
    kind = jax.random.key_impl(run.world)

    def fold(data: Array, number: Array) -> Array:
        key = jax.random.wrap_key_data(data, impl=kind)
        return jax.random.key_data(jax.random.fold_in(key, number))

    # Rows in the order of RoundKeys. In the world's stream round t has the numbers 2 t and 2 t + 1.
    of_all = jax.vmap(jax.vmap(fold), in_axes=(None, 0))
    every = of_all(
        jnp.stack([world, world, policy, training, privacy]),
        jnp.stack([2 * rounds, 2 * rounds + 1, rounds, rounds, rounds], axis=1),
    )
    if not rare:
        return (every,)
    # Folded with a number that no round has, 0 or 1, then with the round.
    within = jax.vmap(fold)(jnp.stack([world, world, training]), jnp.array([0, 1, 0]))
    return every, of_all(within, jnp.stack([rounds] * 3, axis=1))


def of_round(run: Streams, *rows: Array) -> RoundKeys:
    """The keys of a round from its rows of :func:`of_rounds`."""
    kind = jax.random.key_impl(run.world)
    return RoundKeys(*(jax.random.wrap_key_data(row, impl=kind) for each in rows for row in each))


def availability_trace(world: Array, round: Array | int) -> Array:
    """Of the availability trace; round 0 is before the first. No other key folds in number 0."""
    return jax.random.fold_in(jax.random.fold_in(world, 0), round)


def budgets(world: Array) -> Array:
    """Whose privacy budget is how large. No round has this number."""
    return jax.random.fold_in(world, 2**32 - 1)


def choice(policy: Array, round: Array | int) -> Array:
    """The choice of a policy that asks nobody."""
    return jax.random.fold_in(policy, round)


def question_and_choice(of_round: Array) -> tuple[Array, Array]:
    """The question of a policy that asks, and its choice after the answers."""
    question, choice = jax.random.split(of_round)
    return question, choice


def of_clients(key: Array, clients: Array) -> Array:
    """A key for each client [n] from the key of a round, by the client's number."""
    return jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)
