"""Policy wrapper that permutes the client numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Observation, Selection
from pause_jax.policies.base import (
    Answer,
    Context,
    Policy,
    PolicyConfig,
    Selected,
    check_selected,
    policy_of,
)


def renumbered(config: PolicyConfig, context: Context, order: Array) -> Policy:
    """Build a policy that sees client ``order[i]`` as client i, for a permutation ``order`` [K].

    The policy's functions take and return the original client numbers.
    """
    number = jnp.argsort(order).astype(order.dtype)
    policy = policy_of(config, _in_order(context, order))

    def select(key: Array, state: Any, round: Array, available: Array) -> Selected:
        chosen = policy.select(key, state, round, available[order])
        selection, info = check_selected(chosen, context.num_selected)
        return selection._replace(clients=order[selection.clients]), info

    def update(state: Any, selection: Selection, observation: Observation) -> Any:
        selection = selection._replace(clients=number[selection.clients])
        available = jnp.broadcast_to(jnp.asarray(observation.available), order.shape)[order]
        return policy.update(state, selection, observation._replace(available=available))

    query = policy.query
    if query is None:
        return policy._replace(select=select, update=update)

    def ask(key: Array, state: Any, round: Array, available: Array) -> tuple[Array, Array]:
        clients, asked = query.ask(key, state, round, available[order])
        return order[clients], asked

    def receive(state: Any, clients: Array, asked: Array, answer: Answer) -> Any:
        return query.receive(state, number[clients], asked, answer)

    def seconds(latency: Array) -> Array:
        return query.seconds(latency[order])[number]

    renumbered_query = query._replace(ask=ask, receive=receive, seconds=seconds)
    return policy._replace(select=select, update=update, query=renumbered_query)


def _in_order(context: Context, order: Array) -> Context:
    varying, forecast = context.varying, context.forecast
    budget = jax.tree.map(lambda x: x[order] if jnp.ndim(x) else x, context.privacy.budget)
    return context._replace(
        data_size=context.data_size[order],
        local_samples=context.local_samples[order],
        share=context.share[order],
        privacy=context.privacy.with_budget(budget),
        expected_speed=context.expected_speed[order],
        expected_latency=context.expected_latency[order],
        varying=None if varying is None else lambda round: varying(round)[order],
        forecast=None if forecast is None else lambda now, ahead: forecast(now, ahead)[order],
    )
