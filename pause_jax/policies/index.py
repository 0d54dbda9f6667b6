"""Index rules, which estimate client speeds optimistically for policies such as PAUSE and BSFL.

By default, these policies use :class:`Ucb`, but they accept any rule in this module. T_k is the
number of rounds before round t in which client k took part. An untried client's index is +inf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import xlogy
from jaxtyping import Float, Int

from pause_jax.bandit.protocol import Observation, Selection
from pause_jax.bandit.stats import ClientStats, empty_stats, ucb_index, update_stats
from pause_jax.base.struct import Config, number
from pause_jax.policies.base import Context


class Index(NamedTuple):
    """Functions that implement an index rule for a network of clients."""

    init: Callable[[], Any]
    value: Callable[[Array, Any, Array], Array]  # (key, state, round) -> float [K]
    # (state, Selection, speed [m], Observation) -> state
    update: Callable[[Any, Selection, Array, Observation], Any]
    counts: Callable[[Any], Array]  # state -> int [K], participation counts


class IndexRule(Config):
    """Base class for index-rule configs."""

    def build(self, context: Context) -> Index:
        """Build the index functions for the client network that ``context`` describes."""
        raise NotImplementedError


def from_stats(context: Context, value: Callable[[Array, ClientStats, Array], Array]) -> Index:
    """Build an index whose state is :class:`ClientStats`."""

    def update(
        stats: ClientStats, selection: Selection, speed: Array, observation: Observation
    ) -> ClientStats:
        return update_stats(stats, selection.clients, speed, selection.active)

    start = empty_stats(context.num_clients)
    return Index(lambda: start, value, update, lambda stats: stats.counts)


class Ucb(IndexRule):
    """UCB index of BSFL and PAUSE (Eq. 13): zeta * mean + sqrt((m + 1) ln t / T_k).

    Attributes:
      speed_weight: zeta, weight of the mean speed (paper: 1; authors' large network: 3).
    """

    name: ClassVar[str] = "ucb"
    summary: ClassVar[str] = "the papers' index, mean + sqrt((m + 1) ln t / T)"

    speed_weight: float = number(default=1.0, above=0)

    def build(self, context: Context) -> Index:
        def value(key: Array, stats: ClientStats, round: Array) -> Array:
            return ucb_index(stats, round, context.num_selected, speed_weight=self.speed_weight)

        return from_stats(context, value)


class KlUcb(IndexRule):
    """KL-UCB index, the largest q with T_k kl(mean, q) <= ln t (Garivier and Cappe 2011).

    For speeds in [0, 1], this bound is tighter than the Hoeffding bound.
    """

    name: ClassVar[str] = "kl_ucb"
    summary: ClassVar[str] = "Bernoulli KL-UCB"

    def build(self, context: Context) -> Index:
        def value(key: Array, stats: ClientStats, round: Array) -> Array:
            mean = jnp.clip(stats.mean_speed, 0.0, 1.0)
            counts = jnp.maximum(stats.counts, 1)
            level = jnp.log(round.astype(mean.dtype)) / counts.astype(mean.dtype)

            def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
                low, high = bracket
                middle = (low + high) / 2
                inside = bernoulli_kl(mean, middle) <= level
                return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

            low, _ = lax.fori_loop(0, 24, halve, (mean, jnp.ones_like(mean)))
            return jnp.where(stats.counts > 0, low, jnp.inf)

        return from_stats(context, value)


def bernoulli_kl(p: Array, q: Array) -> Array:
    """Compute the KL divergence of Bernoulli(p) from Bernoulli(q) elementwise, in nats."""
    return xlogy(p, p) - xlogy(p, q) + xlogy(1 - p, 1 - p) - xlogy(1 - p, 1 - q)


class Moments(NamedTuple):
    """Client statistics including the second moment of the speed."""

    stats: ClientStats
    mean_square: Float[Array, " K"]  # mean squared speed


class UcbV(IndexRule):
    """UCB-V index, mean + sqrt(2 v ln t / T_k) + 3 ln t / T_k, with the empirical variance v.

    Source: Audibert, Munos and Szepesvari 2009.
    """

    name: ClassVar[str] = "ucb_v"
    summary: ClassVar[str] = "variance-aware UCB-V"

    def build(self, context: Context) -> Index:
        start = Moments(empty_stats(context.num_clients), jnp.zeros(context.num_clients))

        def value(key: Array, state: Moments, round: Array) -> Array:
            counts, mean = state.stats
            variance = jnp.maximum(state.mean_square - jnp.square(mean), 0.0)
            tries = jnp.maximum(counts, 1).astype(mean.dtype)
            level = jnp.log(round.astype(mean.dtype)) / tries
            bound = mean + jnp.sqrt(2 * variance * level) + 3 * level
            return jnp.where(counts > 0, bound, jnp.inf)

        def update(
            state: Moments, selection: Selection, speed: Array, observation: Observation
        ) -> Moments:
            clients, active = selection.clients, selection.active
            squares = ClientStats(state.stats.counts, state.mean_square)
            squares = update_stats(squares, clients, jnp.square(speed), active)
            return Moments(update_stats(state.stats, clients, speed, active), squares.mean_speed)

        return Index(lambda: start, value, update, lambda state: state.stats.counts)


class Thompson(IndexRule):
    """Thompson sampling index, drawn from Beta(1 + sum of speeds, 1 + sum of (1 - speed))."""

    name: ClassVar[str] = "thompson"
    summary: ClassVar[str] = "Thompson sampling from a Beta posterior"

    def build(self, context: Context) -> Index:
        def value(key: Array, stats: ClientStats, round: Array) -> Array:
            counts = stats.counts.astype(stats.mean_speed.dtype)
            total = counts * stats.mean_speed
            draw = jax.random.beta(key, 1 + total, 1 + jnp.maximum(counts - total, 0.0))
            return jnp.where(stats.counts > 0, draw, jnp.inf)

        return from_stats(context, value)


class Discounted(NamedTuple):
    """Client statistics in which older observations have smaller weights."""

    counts: Int[Array, " K"]  # number of participations
    weight: Float[Array, " K"]  # discounted number of participations
    total: Float[Array, " K"]  # discounted sum of speeds
    rounds: Float[Array, ""]  # discounted number of rounds


class DiscountedUcb(IndexRule):
    """Discounted version of the index in Eq. (13) of PAUSE, for clients whose speeds change.

    After s further rounds, an observation has weight discount^s in T_k and in the mean. Rounds are
    weighted in the same way, and t is one plus the sum of their weights. Source: Garivier and
    Moulines 2011, "On upper-confidence bound policies for switching bandit problems".

    Attributes:
      discount: decay factor per round. The effective memory is 1 / (1 - discount) rounds.
      exploration: factor that multiplies the bonus in Eq. (13). With a short memory, the full bonus
        would remain as large as the speeds and make selection almost random.
    """

    name: ClassVar[str] = "discounted_ucb"
    summary: ClassVar[str] = "discounted UCB, for clients whose speeds change"

    discount: float = number(default=0.99, above=0, at_most=1)
    exploration: float = number(default=0.1, at_least=0)

    def build(self, context: Context) -> Index:
        zeros = jnp.zeros(context.num_clients)
        start = Discounted(zeros.astype(jnp.int32), zeros, zeros, jnp.zeros(()))

        def value(key: Array, state: Discounted, round: Array) -> Array:
            # In Eq. (13) of PAUSE, t is one plus the number of observed rounds.
            mean = state.total / jnp.where(state.weight > 0, state.weight, 1.0)
            level = (context.num_selected + 1) * jnp.log(1 + state.rounds)
            spread = jnp.sqrt(level / jnp.where(state.weight > 0, state.weight, 1.0))
            # A client whose weight has decayed to 0 is treated as untried.
            return jnp.where(state.weight > 0, mean + self.exploration * spread, jnp.inf)

        def update(
            state: Discounted, selection: Selection, speed: Array, observation: Observation
        ) -> Discounted:
            clients, active = selection.clients, selection.active
            return Discounted(
                state.counts.at[clients].add(active.astype(state.counts.dtype)),
                (self.discount * state.weight).at[clients].add(active.astype(speed.dtype)),
                (self.discount * state.total).at[clients].add(jnp.where(active, speed, 0.0)),
                self.discount * state.rounds + 1,
            )

        return Index(lambda: start, value, update, lambda state: state.counts)


class Rates(NamedTuple):
    """Sums over each client's finished participations."""

    counts: Int[Array, " K"]  # number of participations
    useful: Float[Array, " K"]  # sum of staleness factors over averaged updates
    taken: Float[Array, " K"]  # sum of tau / tau_min


class UsefulRate(IndexRule):
    """UCB index for overlapping rounds, based on the useful-update rate instead of the mean speed.

    The index is zeta * (useful updates) / (seconds / tau_min) plus the bonus in Eq. (13) of PAUSE.
    An update counts as (1 + staleness)^-a, or 0 if it is lost or too old to be averaged. With
    constant latencies, no staleness and no lost updates, the useful rate equals the mean speed.

    Attributes:
      speed_weight: zeta, weight of the useful-update rate.
      discount: a, exponent of the staleness factor, usually equal to the clock's exponent.
    """

    name: ClassVar[str] = "useful_rate"
    summary: ClassVar[str] = "useful updates per second, for overlapping rounds"

    speed_weight: float = number(default=1.0, above=0)
    discount: float = number(default=0.5, at_least=0)

    def build(self, context: Context) -> Index:
        zeros = jnp.zeros(context.num_clients)
        start = Rates(zeros.astype(jnp.int32), zeros, zeros)

        def value(key: Array, state: Rates, round: Array) -> Array:
            rate = state.useful / jnp.where(state.counts > 0, state.taken, 1.0)
            stats = ClientStats(state.counts, rate)
            return ucb_index(stats, round, context.num_selected, speed_weight=self.speed_weight)

        def update(
            state: Rates, selection: Selection, speed: Array, observation: Observation
        ) -> Rates:
            clients, active = selection.clients, selection.active
            fresh = (1.0 + jnp.asarray(observation.staleness, speed.dtype)) ** -self.discount
            worth = jnp.where(observation.received, fresh, 0.0)
            return Rates(
                state.counts.at[clients].add(active.astype(state.counts.dtype)),
                state.useful.at[clients].add(jnp.where(active, worth, 0.0)),
                state.taken.at[clients].add(jnp.where(active, 1.0 / speed, 0.0)),
            )

        return Index(lambda: start, value, update, lambda state: state.counts)


INDEX_RULES = (Ucb, KlUcb, UcbV, Thompson, DiscountedUcb, UsefulRate)
