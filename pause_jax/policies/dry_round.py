"""Policy rounds with dummy observations, for checks and timing."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Info, Observation, Selection
from pause_jax.policies.base import Answer, Context, Policy


def dry_round(
    policy: Policy,
    context: Context,
    key: Array,
    state: Any,
    round: Array,
    available: Array,
    value: Array,
) -> tuple[Any, Selection, Info, Array | None]:
    """Play a round in which each latency, loss, feature and update entry equals ``value`` > 0.

    Returns:
      (next state, selection, its diagnostics, each client's answer time in seconds). The answer
      times are None if the policy sends no query.
    """
    slots = jnp.full(context.num_selected, value)
    seconds = None
    if policy.query is not None:
        clients, asked = policy.query.ask(key, state, round, available)
        loss = jnp.full(clients.shape, value)
        features = jnp.full((*clients.shape, context.num_features), value)
        state = policy.query.receive(state, clients, asked, Answer(loss, features, asked))
        seconds = policy.query.seconds(jnp.full(context.num_clients, value))
    selection, info = policy.select(key, state, round, available)
    observation = Observation(
        latency=slots,
        loss=slots,
        square_loss=slots,
        update=jnp.full((context.num_selected, context.update_size), value),
        received=slots > 0,
        available=available,
        late=slots < 0,
        clock=value * round,
        server_loss=lambda weights: value * weights.sum(),
    )
    return policy.update(state, selection, observation), selection, info, seconds
