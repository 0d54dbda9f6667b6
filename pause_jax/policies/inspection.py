"""Whether a policy is pure: its functions, traced several times and compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.bandit.protocol import Observation
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, policy_of


def check_pure(config: PolicyConfig, context: Context) -> None:
    """Trace each function of a policy several times and compare the traces.

    Raises:
      AssertionError: naming the function whose traces differ.
    """
    policy = policy_of(config, context)
    traces = _traces(policy, context)
    comparisons = (
        (
            _traces(policy, context),
            "called again with the same arguments it computes something else: it is not pure. Keep "
            "what it must remember in the state, and draw from the key.",
        ),
        (
            _traces(policy_of(config, context), context),
            "built again from the same config it computes something else: it is not pure. Use "
            "nothing but the config, the context and the arguments.",
        ),
    )
    for other, message in comparisons:
        for function, trace in traces.items():
            if other[function] != trace:  # no `assert`: `python -O` skips it
                raise AssertionError(f"{type(config).__name__}.{function}: {message}")


def _traces(policy: Policy, context: Context) -> dict[str, tuple[str, ...]]:
    """Trace the functions of a policy in its first round: name -> operations, held arrays."""
    traces = {}

    def traced(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Trace a function and return the shapes of what it returns."""
        # A new function, as JAX does not trace one again that it knows.
        closed, returned = jax.make_jaxpr(lambda *x: function(*x), return_shape=True)(*arguments)
        # Names of functions come with their addresses.
        operations = re.sub(r" at 0x[0-9a-f]+", "", str(closed.jaxpr))
        traces[name] = operations, *(_shown(each) for each in _constants(closed))
        return returned

    key, round = jax.random.key(0), jnp.int32(1)
    available = jnp.ones(context.num_clients, bool)
    state, query = traced("init", policy.init), policy.query
    if query is not None:
        clients, asked = traced("query.ask", query.ask, key, state, round, available)
        answer = Answer(
            loss=jnp.ones(clients.shape),
            features=jnp.ones((*clients.shape, context.num_features)),
            reported=jnp.ones(clients.shape, bool),
        )
        state = traced("query.receive", query.receive, state, clients, asked, answer)
        traced("query.seconds", query.seconds, jnp.ones(context.num_clients))
    selection, _ = traced("select", policy.select, key, state, round, available)
    ones = jnp.ones(context.num_selected)
    observation = Observation(
        latency=ones,
        loss=ones,
        square_loss=ones,
        update=jnp.ones((context.num_selected, context.update_size)),
        received=ones > 0,
        available=available,
        late=ones < 0,
        clock=1.0,
    )
    traced("update", policy.update, state, selection, observation)
    return traces


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
