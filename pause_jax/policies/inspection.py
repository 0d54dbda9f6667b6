"""Whether a policy is pure: its functions, traced several times and compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.bandit.protocol import Observation
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, policy_of


def check_pure(config: PolicyConfig, context: Context) -> None:
    """Trace a round of a policy several times and compare the traces.

    Raises:
      AssertionError: if they differ.
    """
    policy = policy_of(config, context)
    trace = _trace(policy, context)
    problem = ""
    if _trace(policy, context) != trace:
        problem = "called again with the same arguments"
    elif _trace(policy_of(config, context), context) != trace:
        problem = "built again from the same config"
    if problem:  # no `assert`: `python -O` skips it
        raise AssertionError(
            f"{type(config).__name__}: {problem} it computes something else: it is not pure. Keep "
            "what it must remember in the state, draw from the key, and use nothing but the "
            "config, the context and the arguments."
        )


def _trace(policy: Policy, context: Context) -> list[str]:
    """Return the operations of a policy's first round, then the arrays that it holds."""

    def play(key: Array, round: Array, available: Array, answer: Array, observation: Any) -> Any:
        state = policy.init()
        seconds = None
        if policy.query is not None:
            clients, asked = policy.query.ask(key, state, round, available)
            loss = jnp.full(clients.shape, answer)
            features = jnp.full((*clients.shape, context.num_features), answer)
            state = policy.query.receive(state, clients, asked, Answer(loss, features, asked))
            seconds = policy.query.seconds(jnp.full(context.num_clients, answer))
        selection, info = policy.select(key, state, round, available)
        return policy.update(state, selection, observation), selection, info, seconds

    ones = jnp.ones(context.num_selected)
    observation = Observation(
        latency=ones,
        loss=ones,
        square_loss=ones,
        update=jnp.ones((context.num_selected, context.update_size)),
        received=ones > 0,
        available=jnp.ones(context.num_clients, bool),
        late=ones < 0,
        clock=1.0,
    )
    closed = jax.make_jaxpr(play)(
        jax.random.key(0), jnp.int32(1), observation.available, jnp.float32(1), observation
    )
    # Names of functions come with their addresses.
    operations = re.sub(r" at 0x[0-9a-f]+", "", str(closed.jaxpr))
    return [operations, *(_shown(each) for each in _constants(closed))]


def _shown(constant: Any) -> str:
    if isinstance(constant, Array) and jnp.issubdtype(constant.dtype, jax.dtypes.prng_key):
        constant = jax.random.key_data(constant)
    return repr(np.asarray(constant).tolist())


def _constants(jaxpr: Any) -> Iterator[Any]:
    """Yield the arrays that a traced function holds, also within its inner functions."""
    if isinstance(jaxpr, jax.extend.core.ClosedJaxpr):
        yield from jaxpr.consts
        jaxpr = jaxpr.jaxpr
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from _constants(value)


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, jax.extend.core.ClosedJaxpr | jax.extend.core.Jaxpr)
