"""Policies such as PAUSE that maximise an index plus additive rewards (Eq. 14 of PAUSE).

Source: Peleg et al. 2025, Algorithms 1 and 2; Ben Ami et al. 2025 (BSFL).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from pause_jax.bandit.protocol import Observation, Selection
from pause_jax.bandit.reward import (
    additive_terms,
    cohort_problem,
    generalization_reward,
    marginal_generalization,
)
from pause_jax.bandit.search import Exact, Search
from pause_jax.base.struct import ConfigError, Sizes, node, static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size
from pause_jax.policies.index import Index, IndexRule, Ucb, from_stats


def maximiser(
    context: Context,
    index: Index,
    search: Search,
    *,
    left: Callable[[Array], Array] | None,
    generalization: Callable[..., Array] = generalization_reward,
) -> Policy:
    """Build a policy that maximises an objective of the form given in Eq. (14) of PAUSE.

    The policy's state is the index rule's state. ``left`` maps participation counts [K] to the
    remaining budget shares p [K], and is None without a privacy reward. ``generalization``
    computes g [K] and takes the same arguments as :func:`generalization_reward`.
    """

    def select(key: Array, state: Any, round: Array, available: Array) -> Selected:
        m, counts, reward = context.num_selected, index.counts(state), context.reward
        index_key, search_key = jax.random.split(key)
        value = index.value(index_key, state, round)
        remaining = None if left is None else left(counts)
        g = generalization(counts, round, context.share, m, reward.beta)
        problem = cohort_problem(value, reward, additive_terms(reward, g, remaining, m))
        clients, info = search(search_key, problem, m, available)
        return by_data_size(clients, available, context), info

    def update(state: Any, selection: Selection, observation: Observation) -> Any:
        speed = context.min_latency / observation.latency
        return index.update(state, selection, speed, observation)

    return Policy(index.init, select, update)


class Pause(PolicyConfig):
    """PAUSE: upper confidence bounds on speed, plus generalization and privacy rewards.

    Attributes:
      search: search algorithm that maximises Eq. (14). Annealing() yields SA-PAUSE.
      index: index rule that estimates speeds optimistically. The paper uses Ucb().
      left_of: denominator of the remaining budget share p_k (static): ``own`` for the
        client's budget, as in Eq. (7), or ``largest`` for the largest budget of all clients (our
        variant, which prefers clients with less noise in their updates).
    """

    name: ClassVar[str] = "pause"
    summary: ClassVar[str] = "speed index (UCB by default), plus generalization and privacy rewards"
    observes: ClassVar[str] = "latency"
    assumes: ClassVar[str] = "data sizes, tau_min"
    reference: ClassVar[str] = "Peleg et al. 2025"

    search: Search = node(factory=Exact, of=Search)
    index: IndexRule = node(factory=Ucb, of=IndexRule)
    left_of: str = static(default="own", choices=("own", "largest"))

    def build(self, context: Context) -> Policy:
        budget = context.privacy.budget

        def of_the_largest(counts: Array) -> Array:
            total = budget.total()
            # Unlimited budgets are infinite, and inf / inf is NaN.
            share = jnp.where(jnp.isfinite(total), total / jnp.max(total), 1.0)
            return share * budget.remaining(counts)

        left = budget.remaining if self.left_of == "own" else of_the_largest
        return maximiser(context, self.index.build(context), self.search, left=left)


class Bsfl(Pause):
    """BSFL: PAUSE without the privacy reward (gamma = 0), regardless of ``reward.gamma``."""

    name: ClassVar[str] = "bsfl"
    summary: ClassVar[str] = "PAUSE without the privacy reward (gamma = 0)"
    reference: ClassVar[str] = "Ben Ami et al. 2025"

    def build(self, context: Context) -> Policy:
        return maximiser(context, self.index.build(context), self.search, left=None)

    def check(self, path: str, sizes: Sizes) -> None:
        super().check(path, sizes)
        if self.left_of != "own":
            raise ConfigError(
                f"{path}.left_of = {self.left_of!r}: must be 'own' for Bsfl, which has no privacy "
                "reward. Remove left_of, or use Pause."
            )


class Genie(PolicyConfig):
    """Genie policy, which maximises the reward using the true expected speeds (PAUSE, Eq. 10)."""

    name: ClassVar[str] = "genie"
    summary: ClassVar[str] = "maximises the reward with the true expected speeds"
    assumes: ClassVar[str] = "expected speeds, data sizes"
    reference: ClassVar[str] = "Peleg et al. 2025, (10)"

    def build(self, context: Context) -> Policy:
        index = from_stats(context, lambda key, stats, round: context.speed_at(round))
        return maximiser(context, index, Exact(), left=context.privacy.budget.remaining)


class Mixture(PolicyConfig):
    """Frank-Wolfe steps towards the mixture of cohorts with the largest long-run reward.

    PAUSE maximises the reward of the current round, although each participation lowers the
    generalization reward of later rounds. ``Mixture`` replaces g in Eq. (14) of PAUSE with the
    derivative of the long-run generalization reward.

    Attributes:
      index: index rule that estimates speeds optimistically.
    """

    name: ClassVar[str] = "mixture"
    summary: ClassVar[str] = "PAUSE with Frank-Wolfe steps towards the largest long-run reward"
    observes: ClassVar[str] = "latency"
    assumes: ClassVar[str] = "data sizes, tau_min"
    reference: ClassVar[str] = "ours; Frank and Wolfe 1956"

    index: IndexRule = node(factory=Ucb, of=IndexRule)

    def build(self, context: Context) -> Policy:
        return maximiser(
            context,
            self.index.build(context),
            Exact(),
            left=context.privacy.budget.remaining,
            generalization=marginal_generalization,
        )
