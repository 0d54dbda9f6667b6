"""Additive client rewards, cohort energy and round reward.

Source: Peleg et al. 2025 (PAUSE), Eqs. (7)-(10) and (18); Ben Ami et al. 2025 (BSFL), Eq. (4).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.search.problem import Problem
from pause_jax.base.struct import Config, number

__all__ = [
    "Reward",
    "additive_terms",
    "cohort_problem",
    "cohort_value",
    "generalization_reward",
    "marginal_generalization",
    "problem_of",
]


class Reward(Config):
    """Parameters of the round reward, speed + alpha * generalization + gamma * privacy.

    Attributes:
      alpha: weight of the generalization reward, >= 0.
      beta: exponent of the generalization reward, > 0.
      gamma: weight of the privacy reward, >= 0. BSFL uses gamma = 0.
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
    """Compute the generalization reward g_k before round t (PAUSE, Eq. 8, and BSFL, Eq. 4).

    The reward measures how underused a client's data is. With x = m * share_k - T_k(t - 1) / t, g_k
    = ``|x|^beta * sign(x)``. The g_k are in [-1, 1] if no share_k exceeds 1 / m. ``counts``
    contains T_k, and share_k is d_k / sum(d), where d_k = quality * data size.
    """
    rate = counts.astype(share.dtype) / jnp.asarray(round, share.dtype)
    x = num_selected * share - rate
    return jnp.sign(x) * jnp.abs(x) ** exponent


def marginal_generalization(
    counts: Array,
    round: Array | int,
    share: Float[Array, " K"],
    num_selected: int,
    exponent: Array | float,
) -> Float[Array, " K"]:
    """Compute each client's long-run gain in generalization reward from taking part more often.

    A client with participation rate s = T_k(t - 1) / t earns h(s) = s g(s) per round in the long
    run, with g from :func:`generalization_reward`. For beta > 1, h is not concave near the fair
    share m share_k. The result, the smallest derivative of h at rates up to s, is non-increasing in
    s. Up to h's inflection point, it is ``|x|^(beta - 1) (x - beta s)`` with x = m share_k - s.
    """
    rate = counts.astype(share.dtype) / jnp.asarray(round, share.dtype)
    fair = num_selected * share

    def derivative(x: Array) -> Array:
        size = jnp.maximum(jnp.abs(x), 1e-6)  # for beta < 1, the derivative at x = 0 is infinite
        return jnp.sign(x) * size**exponent - exponent * (fair - x) * size ** (exponent - 1)

    x = fair - rate
    inflection = jnp.maximum(exponent - 1, 0.0) / (exponent + 1) * fair
    here = derivative(x)
    return jnp.where(x >= inflection, here, jnp.minimum(here, derivative(inflection)))


def additive_terms(
    reward: Reward,
    generalization: Float[Array, " K"],
    remaining: Float[Array, " K"] | None,
    num_selected: int,
) -> Float[Array, "L K"]:
    """Return each client's additive terms in a cohort's energy, one row for g and one for p.

    ``remaining`` is p = 1 - spent / total. For BSFL, ``remaining`` is None, and p is omitted.
    """
    rows = [reward.alpha * generalization / num_selected]
    if remaining is not None:
        rows.append(reward.gamma * remaining / num_selected)
    return jnp.stack(rows)


def cohort_problem(index: Array, reward: Reward, terms: Array) -> Problem:
    """Build the maximisation problem (PAUSE, Eq. 14) from an index [K] and additive terms [L, K].

    The energy range is the bound in Lemma 1 plus one: 2 alpha + gamma + 1, or 2 alpha + 1 for BSFL.
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
    """Build the maximisation problem for round t (PAUSE, Eq. 14, or Eq. 10 for the genie).

    ``index`` is the bound in Eq. (13), or mu_k for the genie. ``remaining`` is p_k in Eq. (7), or
    None for BSFL, which has no privacy term. The rows of ``terms`` are the weighted g and p. With
    these terms and the realised speeds, :func:`cohort_value` returns the reward in Eq. (9).
    """
    g = generalization_reward(counts, round, share, num_selected, reward.beta)
    return cohort_problem(index, reward, additive_terms(reward, g, remaining, num_selected))


def cohort_value(
    index: Float[Array, " K"],
    terms: Float[Array, "L K"],
    clients: Int[Array, " m"],
    active: Bool[Array, " m"],
) -> Float[Array, ""]:
    """Compute min(``index``) + sum(``terms``), both over the active ``clients``.

    The result is the energy in Eq. (18) of PAUSE if ``index`` contains UCBs, the reward in Eq. (9)
    for realised speeds, and C^G in Eq. (10) for expected speeds. An empty cohort yields NaN.
    """
    slowest = jnp.min(jnp.where(active, index[clients], jnp.inf))
    added = jnp.sum(jnp.where(active, terms[:, clients], 0.0))
    return jnp.where(jnp.any(active), slowest + added, jnp.nan)
