"""Oort and Pisces: selection of high-loss clients that are fast (Oort) or rarely stale (Pisces).

Source: Lai et al., "Oort: efficient federated learning via guided participant selection", OSDI
2021; Jiang et al., "Pisces: efficient federated learning via guided asynchronous training", SoCC
2022; and the authors' code.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.base.struct import number, static
from pause_jax.policies.base import Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import by_data_size, draw_clients, first_of, top_clients


class OortState(NamedTuple):
    """Oort state."""

    round: Int[Array, ""]  # number of past rounds
    utility: Float[Array, " K"]  # statistical utility of each client's last report
    # Expected latency before the first participation, then the last observed latency (seconds).
    duration: Float[Array, " K"]
    last_round: Int[Array, " K"]  # int32, round of the last received report (0 if none)
    threshold: Float[Array, ""]  # percentile of durations above which clients are penalised
    # Mean utility of exploited clients in each of the last 2 W rounds, oldest first (0 if none).
    exploited: Float[Array, " rounds"]


class Oort(PolicyConfig):
    """Policy that exploits high-utility clients, explores new clients and penalises slow clients.

    A client's score in round R is its utility plus sqrt(0.1 ln R / L), where L is the round of its
    last report. The utility is ``|B| sqrt(mean squared loss)`` over the client's training samples
    B. Utilities are clipped at a quantile and scaled to [0, 1]. The score is multiplied by (T /
    t)^a if the client's latency t exceeds T, a percentile of all latencies. A pacer sets the
    percentile. Over-commitment and the blacklist (off by default in the authors' code) are omitted.

    Attributes:
      exploration: share of the cohort reserved for exploration in round 1.
      exploration_decay: factor by which the exploration share decays per round.
      exploration_min: lower bound on the exploration share.
      clip: quantile at which utilities are clipped.
      penalty: a, exponent of the penalty on slow clients.
      threshold: initial latency percentile (at 100, no client is penalised).
      cutoff: minimum score of the n exploited clients, as a fraction of the n-th best score.
        Clients that reach this minimum are drawn with probabilities proportional to their scores.
      pacer_step: W, number of rounds between pacer adjustments.
      pacer_delta: change in the percentile per adjustment.
      window: size of the pool of best new clients, as a multiple of the number drawn from it.
    """

    name: ClassVar[str] = "oort"
    summary: ClassVar[str] = "clients with high loss and sufficient speed, with exploration"
    reads: ClassVar[tuple[str, ...]] = ("square_loss",)
    observes: ClassVar[str] = "latency, squared loss"
    assumes: ClassVar[str] = "data sizes, expected latencies"
    reference: ClassVar[str] = "Lai et al. 2021"

    exploration: float = number(default=0.9, at_least=0, at_most=1)
    exploration_decay: float = number(default=0.95, above=0, at_most=1)
    exploration_min: float = number(default=0.2, at_least=0, at_most=1)
    clip: float = number(default=0.98, above=0, at_most=1)
    penalty: float = number(default=2.0, at_least=0)
    threshold: float = number(default=10.0, above=0, at_most=100)
    cutoff: float = number(default=0.7, at_least=0, at_most=1)
    pacer_step: int = static(default=20, at_least=1)
    pacer_delta: float = number(default=5.0, at_least=0)
    window: float = number(default=5.0, at_least=1)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        prior = context.local_samples
        start = OortState(
            round=jnp.zeros((), jnp.int32),
            utility=jnp.zeros(num_clients),
            duration=context.expected_latency.astype(jnp.float32),
            last_round=jnp.zeros(num_clients, jnp.int32),
            threshold=jnp.asarray(self.threshold, jnp.float32),
            exploited=jnp.zeros(2 * self.pacer_step),
        )

        def select(key: Array, state: OortState, round: Array, available: Array) -> Selected:
            exploit_key, window_key, explore_key, fill_key = jax.random.split(key, 4)
            seen, fresh = available & (state.last_round > 0), available & (state.last_round == 0)
            exploit_score, explore_score = self.scores(state, prior, round, available)
            # The margin of 1e-4 prevents float32 rounding from dropping a client.
            planned = jnp.floor(m * (1 - explored_share(self, round)) + 1e-4).astype(jnp.int32)
            num_explore = jnp.minimum(jnp.sum(fresh), m - planned)
            num_exploit = jnp.minimum(jnp.sum(seen), m - num_explore)
            ranked = jnp.sort(jnp.where(seen, exploit_score, -jnp.inf), descending=True)
            least = self.cutoff * ranked[jnp.maximum(num_exploit - 1, 0)]
            pool = seen & (exploit_score >= least)
            drawn = draw_clients(exploit_score, pool, num_clients, exploit_key)
            exploited = first_of(drawn, num_exploit)
            best = top_clients(explore_score, fresh, num_clients, window_key)
            num_best = jnp.ceil(self.window * num_explore.astype(jnp.float32))
            pool = fresh & first_of(best, num_best)
            drawn = draw_clients(explore_score, pool, num_clients, explore_key)
            explored = first_of(drawn, num_explore)
            # The best-scoring remaining clients fill the remaining slots.
            score = jnp.where(seen, exploit_score, explore_score)
            rank = jnp.where(exploited | explored, jnp.inf, score)
            clients = top_clients(rank, available, m, fill_key)
            return by_data_size(clients, available, context), no_info()

        def update(state: OortState, selection: Selection, observation: Observation) -> OortState:
            clients, active = selection.clients, selection.active
            received = active & observation.received
            round = state.round + 1
            utility = prior[clients] * jnp.sqrt(observation.square_loss)
            exploited = received & (state.last_round[clients] > 0)
            number = jnp.maximum(jnp.sum(exploited), 1).astype(utility.dtype)
            mean = jnp.sum(jnp.where(exploited, utility, 0.0)) / number
            history = jnp.append(state.exploited[1:], mean)
            return OortState(
                round=round,
                utility=store_active(state.utility, clients, utility, received),
                duration=store_active(state.duration, clients, observation.latency, active),
                last_round=store_active(state.last_round, clients, round, received),
                threshold=self.paced(state.threshold, history, round),
                exploited=history,
            )

        return Policy(lambda: start, select, update)

    def scores(
        self,
        state: OortState,
        prior: Float[Array, " K"],
        round: Array,
        available: Bool[Array, " K"],
    ) -> tuple[Array, Array]:
        """Return all clients' exploitation and exploration scores, float [K] each.

        The exploitation score is (clipped and scaled utility + staleness bonus) * penalty. The
        exploration score is prior * penalty, where ``prior`` is the number of samples that a client
        trains on. Only available clients determine the clipping bound and the scale.
        """
        utility = jnp.where(state.last_round > 0, state.utility, prior)
        # The scaled utility is NaN if no available client has a positive utility.
        counted = jnp.where(available & (utility > 0), utility, jnp.nan)
        top = jnp.nanquantile(counted, self.clip)
        low = 0.999 * jnp.nanmin(counted)
        score = (jnp.minimum(utility, top) - low) / jnp.maximum(jnp.nanmax(counted) - low, 1e-4)
        last = jnp.maximum(state.last_round, 1).astype(jnp.float32)
        score += jnp.sqrt(0.1 * jnp.log(round.astype(jnp.float32)) / last)
        preferred = jnp.percentile(state.duration, jnp.minimum(state.threshold, 100.0))
        preferred = jnp.where(state.threshold >= 100, jnp.inf, preferred)
        slow = state.duration > preferred
        penalty = jnp.where(slow, (preferred / state.duration) ** self.penalty, 1.0)
        return jnp.nan_to_num(score) * penalty, prior * penalty

    def paced(self, threshold: Array, history: Float[Array, " rounds"], round: Array) -> Array:
        """Return the latency percentile after a round, limited to [5, 100] if the pacer adjusts it.

        Every W rounds from round 2 W onwards, the pacer compares A and B, the sums of the first and
        last W entries of ``history``. The percentile rises if ``|B - A| <= 0.1 A`` and falls if
        ``|B - A| >= 5 A``. A higher percentile admits slower clients. (In the paper, the pacer
        raises the percentile if A > B.)
        """
        step = self.pacer_step
        before, now = jnp.sum(history[:step]), jnp.sum(history[step:])
        change = jnp.abs(now - before)
        looser = jnp.minimum(threshold + self.pacer_delta, 100.0)
        stricter = jnp.maximum(threshold - self.pacer_delta, 5.0)
        moved = jnp.where(change >= 5 * before, stricter, threshold)
        moved = jnp.where(change <= 0.1 * before, looser, moved)
        return jnp.where((round >= 2 * step) & (round % step == 0), moved, threshold)


class PiscesState(NamedTuple):
    """Pisces state."""

    utility: Float[Array, " K"]  # statistical utility of each client's last report
    lag: Float[Array, "K n"]  # staleness of each client's last n updates, oldest first
    reports: Int[Array, " K"]  # number of received updates


class Pisces(PolicyConfig):
    """Selection by ``|B| sqrt(mean squared loss) / (lag + 1)^beta``, plus random exploration.

    The lag is the mean staleness of a client's last n updates. In synchronous rounds, the lag is 0,
    and the score is Oort's statistical utility. The number of explored clients is binomially
    distributed. Explored clients are drawn from the clients whose first update has not arrived.

    The rule follows the ``statistical_only`` branch of the authors' code, which produced most of
    their figures. Outlier removal is omitted. ``Asynchronous(pace=b)`` sets the pace as in Pisces.

    Attributes:
      penalty: beta, exponent of the lag.
      exploration: probability that a slot is used for exploration in the first decision.
      exploration_decay: factor by which the exploration probability decays per decision.
      exploration_min: lower bound on the exploration probability.
      memory: n, number of recent updates over which the staleness is averaged.
    """

    name: ClassVar[str] = "pisces"
    summary: ClassVar[str] = "clients with high loss and low staleness, with exploration"
    reads: ClassVar[tuple[str, ...]] = ("square_loss",)
    observes: ClassVar[str] = "squared loss, staleness"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Jiang et al. 2022"

    penalty: float = number(default=0.5, at_least=0)
    exploration: float = number(default=0.9, at_least=0, at_most=1)
    exploration_decay: float = number(default=0.98, above=0, at_most=1)
    exploration_min: float = number(default=0.3, at_least=0, at_most=1)
    memory: int = static(default=5, at_least=1)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        start = PiscesState(
            utility=jnp.zeros(num_clients),
            lag=jnp.zeros((num_clients, self.memory)),
            reports=jnp.zeros(num_clients, jnp.int32),
        )

        def select(key: Array, state: PiscesState, round: Array, available: Array) -> Selected:
            number_key, explore_key, tie_key = jax.random.split(key, 3)
            share = explored_share(self, round)
            number = jnp.sum(jax.random.bernoulli(number_key, share, (m,)), dtype=jnp.int32)
            fresh = available & (state.reports == 0)
            at_random = top_clients(jnp.zeros(num_clients), fresh, num_clients, explore_key)
            # Order: new clients to explore, clients with reports (by score), other new clients.
            rest = jnp.where(fresh, -1.0, self.scores(state))
            rank = jnp.where(fresh & first_of(at_random, number), jnp.inf, rest)
            clients = top_clients(rank, available, m, tie_key)
            return by_data_size(clients, available, context), no_info()

        def update(
            state: PiscesState, selection: Selection, observation: Observation
        ) -> PiscesState:
            clients, received = selection.clients, selection.active & observation.received
            utility = context.local_samples[clients] * jnp.sqrt(observation.square_loss)
            new = jnp.broadcast_to(observation.staleness, clients.shape).astype(state.lag.dtype)
            lag = jnp.column_stack([state.lag[clients][:, 1:], new])
            return PiscesState(
                utility=store_active(state.utility, clients, utility, received),
                lag=store_active(state.lag, clients, lag, received),
                reports=state.reports.at[clients].add(received.astype(jnp.int32)),
            )

        return Policy(lambda: start, select, update)

    def scores(self, state: PiscesState) -> Array:
        """Return all clients' non-negative scores, float [K] (0 where the loss is not finite)."""
        known = jnp.clip(state.reports, 1, self.memory).astype(state.lag.dtype)
        lag = jnp.sum(state.lag, axis=1) / known
        score = state.utility / (lag + 1) ** self.penalty
        return jnp.where(jnp.isfinite(score), score, 0.0)


def explored_share(policy: Oort | Pisces, round: Array) -> Array:
    """Return a round's exploration share (Oort) or probability (Pisces), >= ``exploration_min``."""
    decay = policy.exploration_decay ** (round - 1).astype(jnp.float32)
    return jnp.maximum(policy.exploration * decay, policy.exploration_min)
