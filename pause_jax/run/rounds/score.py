"""Reward (9) and regret (15) of a round, given the policy's own history."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Selection
from pause_jax.bandit.reward import cohort_value, problem_of
from pause_jax.bandit.search import exact
from pause_jax.policies import Context

if TYPE_CHECKING:
    from jaxtyping import Float


class Score(NamedTuple):
    """What a round was worth, scalars.

    Attributes:
      reward: realised reward of the cohort.
      genie_reward: realised reward of the genie's cohort.
      regret: C^G(genie) - C^G(cohort), (10), signed. The genie chooses min(m, available) clients;
        a cohort of as many has a regret >= 0 up to rounding, 1e-6 of the two values, and the
        genie's own has exactly 0. A smaller cohort (FedCS keeps a deadline, draws with repetition
        leave slots empty) may be worth more than the genie's, and then its regret is negative: its
        slowest client may be faster, and terms of g below zero are missing from its sum.
    """

    reward: Float[Array, ""]
    genie_reward: Float[Array, ""]
    regret: Float[Array, ""]


def score(
    context: Context,
    counts: Array,
    latency: Array,
    selection: Selection,
    available: Array,
    round: Array,
    *,
    with_genie: bool,
) -> Score:
    """Score a choice.

    Args:
      context: the network.
      counts: int [K], participations through the round before.
      latency: float [K], seconds of every client in this round.
      selection: what was chosen.
      available: bool [K], among whom the genie chooses too.
      round: t >= 1.
      with_genie: whether to find the genie's choice; NaN for its figures otherwise (static).
    """
    m, remaining = context.num_selected, context.privacy.budget.remaining(counts)
    problem = problem_of(
        context.speed_at(round), context.reward, counts, round, context.share, remaining, m
    )
    speed = context.min_latency / latency
    clients, active = selection.clients, selection.active
    realised = cohort_value(speed, problem.terms, clients, active)
    if not with_genie:
        nan = jnp.asarray(jnp.nan)
        return Score(realised, nan, nan)
    genie, _ = exact(problem.index, problem.weight, m, available=available)
    is_filled = available[genie]
    best = cohort_value(problem.index, problem.terms, genie, is_filled)
    behind = best - cohort_value(problem.index, problem.terms, clients, active)
    same = jnp.all(_sorted(genie, is_filled) == _sorted(clients, active))
    regret = jnp.where(same & jnp.any(active), 0.0, behind)
    return Score(realised, cohort_value(speed, problem.terms, genie, is_filled), regret)


def _sorted(clients: Array, active: Array) -> Array:
    """Return the clients that take part, ascending, after -1 for each empty slot: int [m]."""
    return jnp.sort(jnp.where(active, clients, -1))
