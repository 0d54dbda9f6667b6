"""PAUSE, BSFL and the genie: one maximisation with different indices.

Source: Peleg et al. 2025, (10), (14), Algorithms 1 and 2; Ben Ami et al. 2025 (BSFL).
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
from jax import Array

from pause_jax.bandit import Observation, Selection
from pause_jax.bandit.reward import problem_of
from pause_jax.bandit.search import Exact, Search
from pause_jax.base.struct import node
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size
from pause_jax.policies.index import Index, IndexRule, Ucb, from_stats


def maximiser(context: Context, index: Index, search: Search, *, with_privacy: bool) -> Policy:
    """The policy that maximises ``min index + sum of g and p terms`` over cohorts by a search.

    ``with_privacy`` says whether the privacy reward is a term. Its state is the index's.
    """

    def select(key: Array, state: Any, round: Array, available: Array) -> Selected:
        m, counts = context.num_selected, index.counts(state)
        index_key, search_key = jax.random.split(key)
        value = index.value(index_key, state, round)
        remaining = context.privacy.budget.remaining(counts) if with_privacy else None
        problem = problem_of(value, context.reward, counts, round, context.share, remaining, m)
        clients, info = search(search_key, problem, m, available)
        return by_data_size(clients, available, context), info

    def update(state: Any, selection: Selection, observation: Observation) -> Any:
        if index.observe is not None:
            return index.observe(state, selection, observation)
        speed = context.min_latency / observation.latency
        return index.update(state, selection.clients, speed, selection.active)

    return Policy(index.init, select, update)


class Pause(PolicyConfig):
    """PAUSE: upper confidence bounds on speed, plus generalization and privacy rewards.

    Attributes:
      search: how (14) is maximised: Exact(), Exhaustive() or Annealing() (SA-PAUSE).
      index: the optimistic estimate of a speed: Ucb() as in the paper, or another index rule.
    """

    name: ClassVar[str] = "pause"
    summary: ClassVar[str] = (
        "index of speed (UCB by default), plus generalization and privacy rewards"
    )
    observes: ClassVar[str] = "latency"
    assumes: ClassVar[str] = "data sizes, tau_min"
    reference: ClassVar[str] = "Peleg et al. 2025"
    with_privacy: ClassVar[bool] = True

    search: Search = node(factory=Exact, of=Search)
    index: IndexRule = node(factory=Ucb, of=IndexRule)

    def build(self, context: Context) -> Policy:
        index = self.index.build(context)
        return maximiser(context, index, self.search, with_privacy=self.with_privacy)


class Bsfl(Pause):
    """BSFL: PAUSE without the privacy reward (gamma = 0), whatever ``reward.gamma`` says."""

    name: ClassVar[str] = "bsfl"
    summary: ClassVar[str] = "PAUSE without the privacy reward (gamma = 0)"
    reference: ClassVar[str] = "Ben Ami et al. 2025"
    with_privacy: ClassVar[bool] = False


class Genie(PolicyConfig):
    """The genie (10): the same maximisation with the true expected speeds."""

    name: ClassVar[str] = "genie"
    summary: ClassVar[str] = "maximises the reward with the true expected speeds"
    assumes: ClassVar[str] = "expected speeds, data sizes"
    reference: ClassVar[str] = "Peleg et al. 2025, (10)"

    def build(self, context: Context) -> Policy:
        index = from_stats(context, lambda key, stats, round: context.speed_at(round))
        return maximiser(context, index, Exact(), with_privacy=True)
