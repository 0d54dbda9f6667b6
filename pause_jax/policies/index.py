"""The index: the optimistic estimate of a client's speed that PAUSE and BSFL maximise over.

The papers use :class:`Ucb`; ``index_rules.py`` has alternatives under the same maximisation. All
give +inf to an untried client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from jax import Array

from pause_jax.bandit.stats import ClientStats, empty_stats, ucb_index, update_stats
from pause_jax.base.struct import Config, number
from pause_jax.policies.base import Context


class Index(NamedTuple):
    """An index rule, for one network.

    Attributes:
      init: () -> state.
      value: (key, state, round) -> float [K].
      update: (state, clients [m], speed [m], active [m]) -> state.
      counts: state -> int [K], participations.
      observe: (state, Selection, Observation) -> state, of a rule that reads more than speeds.
    """

    init: Callable[[], Any]
    value: Callable[[Array, Any, Array], Array]
    update: Callable[[Any, Array, Array, Array], Any]
    counts: Callable[[Any], Array]
    observe: Callable[[Any, Any, Any], Any] | None = None


class IndexRule(Config):
    """An index rule's config."""

    def build(self, context: Context) -> Index:
        """The functions, for one network."""
        raise NotImplementedError


def from_stats(context: Context, value: Callable[[Array, ClientStats, Array], Array]) -> Index:
    """An index computed from :class:`ClientStats` alone."""
    return Index(
        init=lambda: empty_stats(context.num_clients),
        value=value,
        update=update_stats,
        counts=lambda stats: stats.counts,
    )


class Ucb(IndexRule):
    """The papers' index (13): zeta * mean + sqrt((m + 1) ln t / T).

    Attributes:
      speed_weight: zeta, multiplies the mean speed (1 as printed, 3 in the large network).
    """

    name: ClassVar[str] = "ucb"
    summary: ClassVar[str] = "mean + sqrt((m + 1) ln t / T), the papers' index"

    speed_weight: float = number(default=1.0, above=0)

    def build(self, context: Context) -> Index:
        def value(key: Array, stats: ClientStats, round: Array) -> Array:
            return ucb_index(stats, round, context.num_selected, speed_weight=self.speed_weight)

        return from_stats(context, value)
