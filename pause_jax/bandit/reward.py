"""The additive rewards of a client, the energy of a cohort, and the reward of a round.

Source: Peleg et al. 2025 (PAUSE), equations (7)-(10) and (18); data quality from Ben Ami et al.
2025 (BSFL), equation (4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.search.problem import Problem
from pause_jax.base.struct import Config, number

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

__all__ = [
    "Reward",
    "additive_terms",
    "cohort_problem",
    "cohort_value",
    "generalization_reward",
    "problem_of",
]


class Reward(Config):
    """How a round is rewarded: speed + alpha * generalization + gamma * privacy.

    Attributes:
      alpha: weight of the generalization reward, >= 0.
      beta: exponent of the generalization reward, > 0.
      gamma: weight of the privacy reward, >= 0. BSFL is gamma = 0.
    """

    alpha: float = number(default=100.0, at_least=0)
    beta: float = number(default=2.0, above=0)
    gamma: float = number(default=5.0, at_least=0)


def generalization_reward(
    counts: Array,
    round: Array | int,
    share: Float[Array, " K"],
    num_selected: int,
    exponent: Array | float,
) -> Float[Array, " K"]:
    """Return g_k before round t: how much client k's data is under-used. Equation (8), BSFL (4).

    With x = m * share_k - T_k(t - 1) / t it is ``|x|^beta * sign(x)``, which is in [-1, 1] while
    no client holds more than 1 / m of the data. share_k is d_k / sum(d) with d_k = quality * data
    size.
    """
    rate = counts.astype(share.dtype) / jnp.asarray(round, share.dtype)
    x = num_selected * share - rate
    return jnp.sign(x) * jnp.abs(x) ** exponent


def additive_terms(
    reward: Reward,
    generalization: Float[Array, " K"],
    remaining: Float[Array, " K"] | None,
    num_selected: int,
) -> Float[Array, "L K"]:
    """Return what each client adds to a cohort's energy: a row for g and, unless None, one for p.

    p = 1 - spent / total is None for BSFL, which has no such term.
    """
    rows = [reward.alpha * generalization / num_selected]
    if remaining is not None:
        rows.append(reward.gamma * remaining / num_selected)
    return jnp.stack(rows)


def cohort_problem(index: Array, reward: Reward, terms: Array) -> Problem:
    """Return the maximisation (14) of an index [K] and the terms of :func:`additive_terms`.

    The energy range is 2 alpha + gamma + 1 (Lemma 1 plus one); gamma counts if there are two terms.
    """
    privacy_weight = reward.gamma if terms.shape[0] == 2 else 0.0
    energy_range = 2.0 * reward.alpha + privacy_weight + 1.0
    return Problem(index=index, terms=terms, energy_range=jnp.asarray(energy_range, index.dtype))


def problem_of(
    index: Float[Array, " K"],
    reward: Reward,
    counts: Array,
    round: Array | int,
    share: Float[Array, " K"],
    remaining: Float[Array, " K"] | None,
    num_selected: int,
) -> Problem:
    """Return the maximisation of round t from what is known before it: (14), or (10) for the genie.

    ``index`` is the bound (13), or mu_k for the genie; ``remaining`` is p_k of (7), or None for
    BSFL, which has no such term. :func:`cohort_value` with the problem's ``terms``, g and then p,
    and with the realised speeds is the reward (9).
    """
    g = generalization_reward(counts, round, share, num_selected, reward.beta)
    return cohort_problem(index, reward, additive_terms(reward, g, remaining, num_selected))


def cohort_value(
    index: Float[Array, " K"],
    terms: Float[Array, "L K"],
    clients: Int[Array, " m"],
    active: Bool[Array, " m"],
) -> Float[Array, ""]:
    """Return the minimum over the active clients of ``index`` plus the sum of their terms.

    With the UCB as index this is the energy (18); with the realised speeds it is the reward (9);
    with the expected speeds it is C^G of (10). NaN for an empty cohort.
    """
    slowest = jnp.min(jnp.where(active, index[clients], jnp.inf))
    added = jnp.sum(jnp.where(active, terms[:, clients], 0.0))
    return jnp.where(jnp.any(active), slowest + added, jnp.nan)
