"""Loop over rounds, as two pure functions ``init`` and ``advance``.

Splitting the rounds of a run across several calls to ``advance`` does not change the result.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from pause_jax.config import SimConfig, with_budgets
from pause_jax.learning import Execution
from pause_jax.learning.server import no_stale_updates
from pause_jax.rng import keys
from pause_jax.run.events import server_step as asynchronous
from pause_jax.run.record.result import Quantities, Record, record_unplayed
from pause_jax.run.rounds.branch import when
from pause_jax.run.rounds.horizon import Length, has_ended
from pause_jax.run.rounds.round import play
from pause_jax.run.rounds.state import State, healthy
from pause_jax.run.setup import learner_of, setup_of


def init(config: SimConfig, data: Any, key: Array) -> tuple[State, Array]:
    """Create the state before round 1.

    Returns:
      (state, expected latency of the fastest client in seconds, for ``warn_if_far``).
    """
    streams = keys.streams(key)
    learner = learner_of(config, data)
    learning = learner.init(streams)
    config = with_budgets(config, keys.budgets(streams.world))
    setup = setup_of(config, learner, learning, streams.world)
    stale = None
    if config.learning is not None and config.stale_updates == "next":
        stale = no_stale_updates(learner, learning, config.cohort_size)
    state = State(
        keys=streams,
        learning=learning,
        policy=setup.policy.init(),
        counts=jnp.zeros(config.num_clients, jnp.int32),
        queried=jnp.zeros(config.num_clients, jnp.int32),
        played=jnp.zeros((), jnp.int32),
        clock=jnp.zeros(()),
        clock_rest=jnp.zeros(()),
        health=healthy(),
        availability_trace=setup.world.init(streams.world),
        stale=stale,
        flight=asynchronous.init(setup, learning) if config.overlaps else None,
    )
    return state, jnp.min(setup.context.expected_latency)


def advance(
    config: SimConfig,
    data: Any,
    state: State,
    rounds: Array,
    quantities: Quantities,
    execution: Execution | None = None,
    length: Length | None = None,
    count: Array | int | None = None,
) -> tuple[State, Record]:
    """Simulate consecutive rounds until the clock reaches ``max_seconds``.

    ``rounds`` contains round numbers >= 1. If ``count`` is set, only the first ``count`` are used.

    Returns:
      (state, record with leaves [R, ...]). Rows after the first ``count`` are undefined.
    """
    config = with_budgets(config, keys.budgets(state.keys.world))
    learner = learner_of(config, data, execution)
    setup = setup_of(config, learner, state.learning, state.keys.world, length)
    play_one = asynchronous.play if config.overlaps else play

    # jit lets eval_shape and the loop share one trace.
    @functools.partial(jax.jit, inline=True)
    def play_round(before: State, round: Array) -> tuple[State, Record]:
        return play_one(setup, before, keys.of_round(before.keys, round), round, quantities)

    _, shapes = jax.eval_shape(play_round, state, rounds[0])

    def play_until_the_end(before: State, round: Array) -> tuple[State, Record]:
        return when(
            ~has_ended(config, before.clock),
            lambda: play_round(before, round),
            (before, record_unplayed(quantities, shapes)),
        )

    step = play_round if config.max_seconds is None else play_until_the_end

    def step_and_record(i: Array, carry: tuple[State, Record]) -> tuple[State, Record]:
        state, record = carry
        state, row = step(state, lax.dynamic_index_in_dim(rounds, i, keepdims=False))
        put = functools.partial(lax.dynamic_update_index_in_dim, index=i, axis=0)
        return state, jax.tree.map(put, record, row)

    empty = jax.tree.map(lambda x: jnp.zeros((len(rounds), *x.shape), x.dtype), shapes)
    count = len(rounds) if count is None else count
    return lax.fori_loop(0, count, step_and_record, (state, empty))
