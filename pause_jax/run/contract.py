"""Warnings about non-finite models and about custom components that break their contract.

Compiled code cannot raise exceptions, so a run records which rules were broken. Only runs with a
custom policy or latency model check the rules, because our tests cover the built-in classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from pause_jax.bandit.protocol import Selection
from pause_jax.base.struct import is_ours
from pause_jax.config import SimConfig

# Names of the recorded quantities that trigger warnings.
RECORDED = ("first_broken_round", "broken_rules")
NONFINITE = "first_nonfinite_round"
RULES = (
    "the policy chose a client twice",
    "the policy chose a client that does not exist",
    "the policy assigned weight to an unavailable client",
    "the policy's weights are negative or not finite",
    "the policy's weights do not sum to one",
    "a latency is not finite",
    "a latency is below min_latency",
)
# Rounding tolerance (absolute for the sum of the weights, relative for min_latency).
_ROUNDING = 1e-3


def is_checked(config: SimConfig) -> bool:
    """Return whether the config has a custom policy or latency model."""
    return not (is_ours(type(config.policy)) and is_ours(type(config.latency)))


def broken(selection: Selection, available: Array, latency: Array, min_latency: Array) -> Array:
    """Return an int32 bit mask of the rules broken in a round. Bit i represents ``RULES[i]``."""
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
    """Describe the broken rules encoded in a bit mask returned by :func:`broken`."""
    return "; ".join(rule for place, rule in enumerate(RULES) if rules >> place & 1)


class BrokenContract(UserWarning):
    """Warning that a custom component broke its contract, so the results are invalid."""


class NotFinite(UserWarning):
    """Warning that a run's model became non-finite."""


def finding(rounds: Any, rules: Any) -> str:
    """Describe the earliest rule violations across a config's seeds, or return "" if none occurred.

    ``rounds`` and ``rules`` are the two ``RECORDED`` quantities, with one entry per seed.
    """
    rounds, rules = np.atleast_1d(rounds), np.atleast_1d(rules)
    if not (rounds > 0).any():
        return ""
    first = int(rounds[rounds > 0].min())
    return (
        f"{words(int(rules[rounds == first][0]))} (first in round {first}, in "
        f"{(rounds > 0).sum()} of {rounds.size} seeds). These results are not valid."
    )


def not_finite(rounds: Any) -> str:
    """Return a message about seeds with a non-finite model, or "" if all models are finite."""
    each = np.ravel(rounds)
    bad = each[each > 0]
    if not bad.size:
        return ""
    return (
        f"the model became non-finite in {bad.size} of {each.size} seeds (first in round "
        f"{bad.min()})."
    )


def warn(recorded: Mapping[Any, Any], names: Sequence[str]) -> None:
    """Issue at most one ``BrokenContract`` and one ``NotFinite`` warning for all configs.

    ``recorded`` maps quantity names to arrays with one row per config (scalars for a single run).
    """
    if set(RECORDED) <= set(recorded):
        findings = map(finding, *(np.atleast_1d(recorded[each]) for each in RECORDED))
        _warn(names, findings, BrokenContract)
    if NONFINITE in recorded:
        _warn(names, map(not_finite, np.atleast_1d(recorded[NONFINITE])), NotFinite)


def _warn(names: Sequence[str], findings: Iterable[str], category: type[Warning]) -> None:
    if lines := [f"{name}: {words}" for name, words in zip(names, findings, strict=True) if words]:
        warnings.warn("\n".join(lines), category, stacklevel=4)
