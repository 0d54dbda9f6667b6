"""Whether a policy is pure and declares what it reads: its functions, traced and compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.bandit.protocol import Observation
from pause_jax.policies.base import (
    UNNOISED,
    Answer,
    Context,
    Policy,
    PolicyConfig,
    built_by,
    watched,
)


class _Call(NamedTuple):
    """A function of a policy, arguments that it may be called with, and what it then computes.

    Attributes:
      function: the function.
      arguments: its arguments, or their shapes.
      returns: the shapes of what it returns.
      text: its operations, then the arrays that it holds.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    returns: Any
    text: tuple[str, ...]


def check_pure(config: PolicyConfig, context: Context) -> None:
    """Trace each function of a policy several times and compare the traces.

    Raises:
      AssertionError: naming the function whose traces differ.
    """
    name = type(config).__name__
    one, other = (_calls(built_by(config, context), context) for _ in range(2))
    for which, call in one.items():
        assert _traced(call.function, *call.arguments).text == call.text, (
            f"{name}.{which}: called again with the same arguments it computes something else: it "
            "is not pure. Keep what it must remember in the state, and draw from the key."
        )
        assert other[which].text == call.text, (
            f"{name}.{which}: built again from the same config it computes something else: it is "
            "not pure. Use nothing but the config, the context and the arguments."
        )


def check_declared(config: PolicyConfig, context: Context) -> None:
    """Check that ``releases`` has an entry for each reading that clients send without noise.

    Raises:
      AssertionError: naming what it reads, and what it declares.
    """
    policy = built_by(config, context)
    calls = _calls(policy, context)
    read = _read(calls["update"], Observation, "observation", UNNOISED)
    if policy.query is not None and policy.query.wants == "loss":
        read |= _read(calls["query.receive"], Answer, "answer", UNNOISED[:1])
    assert len(read) <= len(config.releases), (
        f"{type(config).__name__}: reads {', '.join(sorted(read))}, and `releases` is "
        f"{config.releases}: must have an entry for each, as clients send them without noise."
    )


def _read(call: _Call, kind: type[Any], word: str, fields: tuple[str, ...]) -> set[str]:
    """Which of these fields of its last argument a function reads, as ``word.field``."""
    found = set[str]()
    record = watched(kind, fields, lambda field: found.add(f"{word}.{field}"))
    jax.eval_shape(lambda *x: call.function(*x[:-1], record(x[-1])), *call.arguments)
    return found


def _calls(policy: Policy, context: Context) -> dict[str, _Call]:
    """The functions of a policy by name, with the arguments of its first round."""
    num_clients, m = context.num_clients, context.num_selected
    key, round, available = jax.random.key(0), jnp.int32(1), jnp.ones(num_clients, bool)
    found = {"init": _traced(policy.init)}
    state, query = found["init"].returns, policy.query
    if query is not None:
        found["query.ask"] = _traced(query.ask, key, state, round, available)
        clients, asked = found["query.ask"].returns
        loss = jnp.ones(clients.shape)
        features = jnp.ones((*clients.shape, context.num_features))
        answer = Answer(loss, features, jnp.ones(clients.shape, bool))
        found["query.receive"] = _traced(query.receive, state, clients, asked, answer)
        found["query.seconds"] = _traced(query.seconds, jnp.ones(num_clients))
        state = found["query.receive"].returns
    found["select"] = _traced(policy.select, key, state, round, available)
    selection, _ = found["select"].returns
    ones = jnp.ones(m)
    observation = Observation(
        *(ones, ones, ones, jnp.ones((m, context.update_size)), ones > 0, available, ones < 0, 1.0)
    )
    found["update"] = _traced(policy.update, state, selection, observation)
    return found


def _traced(function: Callable[..., Any], *arguments: Any) -> _Call:
    # A new function, as JAX does not trace one again that it knows.
    closed, returns = jax.make_jaxpr(lambda *x: function(*x), return_shape=True)(*arguments)
    # Names of functions come with their addresses.
    operations = re.sub(r" at 0x[0-9a-f]+", "", str(closed.jaxpr))
    text = operations, *(_shown(each) for each in _constants(closed))
    return _Call(function, arguments, returns, text)


def _shown(constant: Any) -> str:
    if isinstance(constant, Array) and jnp.issubdtype(constant.dtype, jax.dtypes.prng_key):
        constant = jax.random.key_data(constant)
    return repr(np.asarray(constant).tolist())


def _constants(jaxpr: Any) -> Iterator[Any]:
    """Arrays that a traced function holds, also within its inner functions."""
    if isinstance(jaxpr, jax.extend.core.ClosedJaxpr):
        yield from jaxpr.consts
        jaxpr = jaxpr.jaxpr
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from _constants(value)


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, jax.extend.core.ClosedJaxpr | jax.extend.core.Jaxpr)
