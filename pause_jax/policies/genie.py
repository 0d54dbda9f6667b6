"""The genie that regret is measured against."""

from __future__ import annotations

from typing import ClassVar

from pause_jax.bandit.search import Exact
from pause_jax.policies.base import Context, Policy, PolicyConfig
from pause_jax.policies.index import from_stats
from pause_jax.policies.pause import maximiser


class Genie(PolicyConfig):
    """The genie (10): the same maximisation with the true expected speeds."""

    name: ClassVar[str] = "genie"
    summary: ClassVar[str] = "maximises the reward with the true expected speeds"
    assumes: ClassVar[str] = "expected speeds, data sizes"
    reference: ClassVar[str] = "Peleg et al. 2025, (10)"

    def build(self, context: Context) -> Policy:
        index = from_stats(context, lambda key, stats, round: context.speed_at(round))
        return maximiser(context, index, Exact(), left=context.privacy.budget.remaining)
