"""Warnings about the figures of finished runs: custom parts that broke their contract, and NaN.

A value is known in the run only, where nothing can be raised: what is broken is recorded. The
library's own parts are tested instead.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.bandit.protocol import Selection
from pause_jax.base.struct import is_ours
from pause_jax.config import SimConfig

# The recorded quantities that say what was broken, and when weights stopped being finite.
RECORDED = ("first_broken_round", "broken_rules")
NONFINITE = "first_nonfinite_round"
# In the order of their bits.
RULES = (
    "the policy chose a client twice",
    "the policy chose a number that is no client",
    "the policy gave a weight to a client that was not available",
    "the policy's weights are not finite and >= 0",
    "the policy's weights do not sum to one",
    "a latency is not finite",
    "a latency is below min_latency",
)
# By which weights may miss one, and a latency the least, by rounding.
_ROUNDING = 1e-3


def is_checked(config: SimConfig) -> bool:
    """Whether the policy or the latency model of a run is custom."""
    return not (is_ours(type(config.policy)) and is_ours(type(config.latency)))


def broken(selection: Selection, available: Array, latency: Array, min_latency: Array) -> Array:
    """Find the rules that a round breaks, int32: bit i for ``RULES[i]``; 0 for none."""
    clients, weights = selection
    active = selection.active
    num_clients = available.shape[0]
    inside = (clients >= 0) & (clients < num_clients)
    ordered = jnp.sort(jnp.where(active, clients, -1 - jnp.arange(clients.shape[0])))
    total = jnp.sum(weights)
    least = min_latency * (1 - _ROUNDING)
    found = (
        jnp.any(ordered[1:] == ordered[:-1]),
        jnp.any(active & ~inside),
        jnp.any(active & inside & ~available[jnp.clip(clients, 0, num_clients - 1)]),
        ~jnp.all(jnp.isfinite(weights) & (weights >= 0)),
        jnp.any(active) & jnp.isfinite(total) & (jnp.abs(total - 1) > _ROUNDING),
        ~jnp.all(jnp.isfinite(latency)),
        jnp.any(latency < least),
    )
    return sum(
        (rule.astype(jnp.int32) << place for place, rule in enumerate(found)),
        start=jnp.zeros((), jnp.int32),
    )


def words(rules: int) -> str:
    """What a number of :func:`broken` says."""
    return "; ".join(rule for place, rule in enumerate(RULES) if rules >> place & 1)


class BrokenContract(UserWarning):
    """A custom part broke its contract, so the figures of the runs mean nothing."""


class NotFinite(UserWarning):
    """A run's model has weights that are not finite."""


def finding(rounds: Any, rules: Any) -> str:
    """Say what the runs of a config broke, by the ``RECORDED`` of each seed; empty if nothing."""
    rounds, rules = np.atleast_1d(rounds), np.atleast_1d(rules)
    if not (rounds > 0).any():
        return ""
    first = int(rounds[rounds > 0].min())
    return (
        f"{words(int(rules[rounds == first][0]))}, in round {first} and in {(rounds > 0).sum()} of "
        f"{rounds.size} seeds; its figures mean nothing."
    )


def not_finite(rounds: Any) -> str:
    """Say from which round on models were not finite, by ``NONFINITE`` of each seed, or nothing."""
    each = np.ravel(rounds)
    bad = each[each > 0]
    if not bad.size:
        return ""
    return f"the model was not finite from round {bad.min()} on in {bad.size} of {each.size} seeds."


def warn(found: dict[str, str], category: type[Warning] = BrokenContract) -> None:
    """Warn once of all that was found, by the names of the configs."""
    if lines := [f"{name}: {words}" for name, words in found.items() if words]:
        warnings.warn("\n".join(lines), category, stacklevel=3)
