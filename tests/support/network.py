"""What a policy alone sees: a context and observations, rounds of it, and frequencies of draws."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from pause_jax.bandit.reward import Reward
from pause_jax.policies import Context, Observation, Policy, Selection
from pause_jax.privacy import NoPrivacy


def context(sizes, m, **changes) -> Context:
    """A network of clients with these data sizes, no privacy, and speeds from 0.2 to 0.9."""
    size = np.asarray(sizes, np.float32)
    speed = np.linspace(0.2, 0.9, len(sizes), dtype=np.float32)
    numbers = {
        "data_size": size,
        "local_samples": size,
        "share": size / size.sum(),
        "min_latency": np.float32(0.05),
        "expected_speed": speed,
        "expected_latency": np.float32(0.05) / speed,
    }
    base = Context(
        num_clients=len(sizes),
        num_selected=m,
        num_rounds=100,
        update_size=0,
        num_features=1,
        reward=Reward(),
        privacy=NoPrivacy(),
        **jax.device_put(numbers),
    )
    return base._replace(**changes)


def observation(latency, loss=1.0, square_loss=1.0, update=None, received=True) -> Observation:
    """What the chosen returned: latency is [m], the rest is broadcast to it; all are received.

    In NumPy, whose operations compile nothing, unless it is given arrays of JAX.
    """
    latency = in_numpy(latency, np.float32)
    update = np.zeros((*latency.shape, 0)) if update is None else update

    def of_each(value):
        value = in_numpy(value, np.float32)
        return value if value.shape == latency.shape else np.full(latency.shape, value)

    return Observation(
        latency,
        of_each(loss),
        of_each(square_loss),
        in_numpy(update, np.float32),
        in_numpy(received),
    )


def in_numpy(value, dtype=None):
    """``value``, as a NumPy array if it is none of JAX, which may be traced."""
    return value if isinstance(value, jax.Array) else np.asarray(value, dtype)


def jitted(policy: Policy) -> Policy:
    """Return the policy with its functions under jit."""
    query = policy.query
    if query is not None:
        query = query._replace(ask=jax.jit(query.ask), receive=jax.jit(query.receive))
    select, update = jax.jit(policy.select), jax.jit(policy.update)
    return policy._replace(select=select, update=update, query=query)


class Played(NamedTuple):
    """A round: ``state`` is that before the choice, ``chosen`` the clients that take part."""

    round: int
    available: np.ndarray
    selection: Selection
    chosen: list[int]
    state: Any
    asked: np.ndarray | None
    seen: Observation


def play(policy: Policy, available, observe, answer=None) -> Iterator[Played]:
    """Play one round per mask in ``available``.

    Args:
      policy: from :func:`jitted`.
      available: masks [K].
      observe: (round, selection) -> observation.
      answer: (round, clients) -> answer, of a policy that asks.
    """
    state, asked = policy.init(), None
    for t, here in enumerate(available, start=1):
        key, round = jax.random.key(t), np.asarray(t)
        if policy.query is not None:
            clients, asked = jax.device_get(policy.query.ask(key, state, round, here))
            state = policy.query.receive(state, clients, asked, answer(t, clients))
        selection = jax.device_get(policy.select(key, state, round, here)[0])
        seen = observe(t, selection)
        chosen = selection.clients[selection.active].tolist()
        yield Played(t, here, selection, chosen, state, asked, seen)
        state = policy.update(state, selection, seen)


def received(policy: Policy, updates: np.ndarray, m: int) -> Any:
    """Return the state after each client's update [K, d] was received, m at a time."""
    state, num_clients = policy.init(), len(updates)
    for first in range(0, num_clients, m):
        clients = (first + np.arange(m)) % num_clients
        selection = Selection(clients, np.full(m, 1 / m, np.float32))
        state = policy.update(state, selection, observation(np.ones(m), update=updates[clients]))
    return state


def groups_of(label) -> list[list[int]]:
    """Return the sorted clients of each label."""
    return sorted(np.flatnonzero(label == each).tolist() for each in np.unique(label))


@functools.partial(jax.jit, static_argnums=0)
def _selections(select, keys, *rest):
    return jax.vmap(lambda key: select(key, *rest)[0])(keys)


def drawn(select, draws: int, state, round, available) -> np.ndarray:
    """Return each client's weight [draws, K] in choices with different keys.

    All calls with one ``select`` and number of draws share a program.
    """
    keys = jax.random.split(jax.random.key(0), draws)
    selections = _selections(select, keys, state, np.asarray(round), available)
    clients, weights = jax.device_get(selections)
    spread = np.zeros((draws, len(available)))
    np.put_along_axis(spread, clients, weights, axis=1)
    return spread


def off(members: np.ndarray, expected) -> np.ndarray:
    """Return by how many standard deviations the frequency of members [draws, ...] is off."""
    expected = np.clip(expected, 1e-9, 1 - 1e-9)
    deviation = np.sqrt(expected * (1 - expected) / len(members))
    return np.abs(members.mean(axis=0) - expected) / deviation
