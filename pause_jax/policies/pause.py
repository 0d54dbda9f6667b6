"""PAUSE, BSFL and the genie: one maximisation with different indices.

Source: Peleg et al. 2025, (10), (14), Algorithms 1 and 2; Ben Ami et al. 2025 (BSFL).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from jax import Array

from pause_jax.bandit import ClientStats, empty_stats, ucb_index, update_stats
from pause_jax.policies.base import (
    Context,
    Info,
    Observation,
    Policy,
    PolicyConfig,
    Selection,
    by_data_size,
)
from pause_jax.reward import additive_terms, cohort_problem, generalization_reward
from pause_jax.search import Exact, Search
from pause_jax.struct import node, number


def maximiser(
    context: Context,
    index: Callable[[ClientStats, Array], Array],
    search: Search,
    *,
    with_privacy: bool,
) -> Policy:
    """The policy that maximises ``min index + sum of g and p terms`` over cohorts.

    Args:
      context: the network.
      index: (stats, round) -> float [K].
      search: how to maximise.
      with_privacy: whether the privacy reward is a term.

    Returns:
      A policy whose state is its own :class:`ClientStats`.
    """

    def select(
        key: Array, stats: ClientStats, round: Array, available: Array
    ) -> tuple[Selection, Info]:
        m = context.num_selected
        g = generalization_reward(stats.counts, round, context.share, m, context.reward.beta)
        p = context.privacy.remaining(stats.counts) if with_privacy else None
        terms = additive_terms(context.reward, g, p, m)
        problem = cohort_problem(index(stats, round), context.reward, terms)
        clients, info = search(key, problem, m, available)
        return by_data_size(clients, available, context), Info(*info)

    def update(stats: ClientStats, selection: Selection, observation: Observation) -> ClientStats:
        speed = context.min_latency / observation.latency
        return update_stats(stats, selection.clients, speed, selection.weights > 0)

    return Policy(lambda: empty_stats(context.num_clients), select, update)


class Pause(PolicyConfig):
    """PAUSE: upper confidence bounds on speed, plus generalization and privacy rewards.

    Attributes:
      search: how (14) is maximised: Exact(), Exhaustive() or Annealing() (SA-PAUSE).
      speed_weight: zeta, multiplies the mean speed in the index.
    """

    name: ClassVar[str] = "pause"
    summary: ClassVar[str] = "UCB on speed, plus generalization and privacy rewards"
    observes: ClassVar[str] = "latency"
    assumes: ClassVar[str] = "data sizes, tau_min"
    reference: ClassVar[str] = "Peleg et al. 2025"
    with_privacy: ClassVar[bool] = True

    search: Search = node(factory=Exact)
    speed_weight: float = number(default=1.0, above=0)

    def build(self, context: Context) -> Policy:
        def index(stats: ClientStats, round: Array) -> Array:
            return ucb_index(stats, round, context.num_selected, speed_weight=self.speed_weight)

        return maximiser(context, index, self.search, with_privacy=self.with_privacy)


class Bsfl(Pause):
    """BSFL: PAUSE without the privacy reward (gamma = 0), whatever ``reward.gamma`` says."""

    name: ClassVar[str] = "bsfl"
    summary: ClassVar[str] = "UCB on speed, plus generalization reward (PAUSE with gamma = 0)"
    reference: ClassVar[str] = "Ben Ami et al. 2025"
    with_privacy: ClassVar[bool] = False


class Genie(PolicyConfig):
    """The genie (10): the same maximisation with the true expected speeds."""

    name: ClassVar[str] = "genie"
    summary: ClassVar[str] = "maximises the reward with the true expected speeds"
    assumes: ClassVar[str] = "expected speeds, data sizes"
    reference: ClassVar[str] = "Peleg et al. 2025, (10)"

    def build(self, context: Context) -> Policy:
        def index(stats: ClientStats, round: Array) -> Array:
            return context.expected_speed

        return maximiser(context, index, Exact(), with_privacy=True)
