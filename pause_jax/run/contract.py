"""Warnings about finished runs: broken contracts of custom parts and non-finite models.

Compiled code cannot raise, so a run records the rules that it breaks. Only custom parts are checked
in a run. Tests cover the parts of the library.
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

# Recorded quantities that the warnings read.
RECORDED = ("first_broken_round", "broken_rules")
NONFINITE = "first_nonfinite_round"
# Rule i is bit i of the mask that `broken` returns.
RULES = (
    "the policy chose a client twice",
    "the policy chose a number that is no client",
    "the policy gave a weight to a client that was not available",
    "the policy's weights are not finite and >= 0",
    "the policy's weights do not sum to one",
    "a latency is not finite",
    "a latency is below min_latency",
)
# Rounding tolerance: absolute for the sum of the weights, relative for min_latency.
_ROUNDING = 1e-3


def is_checked(config: SimConfig) -> bool:
    """Return whether the policy or the latency model of a run is custom."""
    return not (is_ours(type(config.policy)) and is_ours(type(config.latency)))


def broken(selection: Selection, available: Array, latency: Array, min_latency: Array) -> Array:
    """Return the rules that a round breaks as a bit mask, int32: bit i for ``RULES[i]``."""
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
    """Decode the bit mask returned by :func:`broken`."""
    return "; ".join(rule for place, rule in enumerate(RULES) if rules >> place & 1)


class BrokenContract(UserWarning):
    """Warning that a custom part broke its contract, which invalidates the results of the runs."""


class NotFinite(UserWarning):
    """Warning that the model of a run has non-finite weights."""


def finding(rounds: Any, rules: Any) -> str:
    """Describe the first broken contract of a config; empty if no seed broke one.

    ``rounds`` and ``rules`` hold the two ``RECORDED`` quantities of each seed.
    """
    rounds, rules = np.atleast_1d(rounds), np.atleast_1d(rules)
    if not (rounds > 0).any():
        return ""
    first = int(rounds[rounds > 0].min())
    return (
        f"{words(int(rules[rounds == first][0]))}, in round {first} and in {(rounds > 0).sum()} of "
        f"{rounds.size} seeds; its figures mean nothing."
    )


def not_finite(rounds: Any) -> str:
    """Describe non-finite models from the ``NONFINITE`` of each seed; empty if all were finite."""
    each = np.ravel(rounds)
    bad = each[each > 0]
    if not bad.size:
        return ""
    return f"the model was not finite from round {bad.min()} on in {bad.size} of {each.size} seeds."


def warn(found: dict[str, str], category: type[Warning] = BrokenContract) -> None:
    """Issue one warning with all non-empty findings, keyed by config name."""
    if lines := [f"{name}: {words}" for name, words in found.items() if words]:
        warnings.warn("\n".join(lines), category, stacklevel=3)
