"""TiFL: cohorts from a single latency tier, favouring tiers with large losses.

Source: Chai et al., "TiFL: a tier-based federated learning system", HPDC 2020.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from pause_jax.bandit.protocol import Observation, Selection, no_info
from pause_jax.base.struct import ConfigError, Sizes, number, static
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, Query, Selected
from pause_jax.policies.choose import by_data_size, draw_clients


class TiflState(NamedTuple):
    """TiFL state."""

    credits: Int[Array, " n"]  # negative if a tier was chosen without credits
    loss: Float[Array, " n"]  # each tier's mean loss at the last check, inf if unknown
    weight: Float[Array, " n"]  # probability of choosing each tier, up to a common factor
    tier: Int[Array, ""]  # tier of the last cohort


class Tifl(PolicyConfig):
    """Random cohort from a random tier of clients with similar latencies.

    Clients are divided by expected latency into tiers whose sizes differ by at most one. At first,
    all tiers are equally likely. In round 1 and every ``interval`` rounds thereafter, all available
    clients report the global model's loss on their training data. If the mean loss of the last
    cohort's tier has not decreased since the previous check, the tiers with remaining credits are
    ranked by mean loss. A tier's probability becomes proportional to its rank, which is highest for
    the largest loss. Tied tiers share their mean rank. The paper ranks tiers by test accuracy.

    Choosing a tier costs a credit. Tiers without credits or available clients are skipped. If all
    tiers are skipped, a tier with available clients is chosen uniformly at random. If the chosen
    tier has fewer than m available clients, the remaining slots stay empty.

    Attributes:
      tiers: number of tiers, at most K.
      interval: number of rounds between checks.
      credits: credits per tier, as a multiple of T / ``tiers``, where T is the number of rounds.
      query_share: time to evaluate a sample, relative to the client's latency per training sample.
    """

    name: ClassVar[str] = "tifl"
    summary: ClassVar[str] = "clients of similar speed, from tiers with large losses"
    observes: ClassVar[str] = "loss"
    assumes: ClassVar[str] = "expected latencies"
    reference: ClassVar[str] = "Chai et al. 2020"
    reads: ClassVar[tuple[str, ...]] = ("answer.loss",)
    alone: ClassVar[bool] = True

    tiers: int = static(default=5, at_least=1)
    interval: int = static(default=10, at_least=1)
    credits: float = number(default=2.0, at_least=1)
    query_share: float = number(default=1 / 3, at_least=0)

    def check(self, path: str, sizes: Sizes) -> None:
        if self.tiers > sizes.num_clients:
            raise ConfigError(
                f"{path}.tiers = {self.tiers}: must be <= num_clients = {sizes.num_clients}. Lower "
                f"{path}.tiers."
            )

    def build(self, context: Context) -> Policy:
        num_clients, m, tiers = context.num_clients, context.num_selected, self.tiers
        place = jnp.argsort(jnp.argsort(context.expected_latency))
        tier_of = place * tiers // num_clients
        credits = jnp.round(self.credits * context.num_rounds / tiers).astype(jnp.int32)
        unknown = jnp.full(tiers, jnp.inf)
        start = TiflState(jnp.full(tiers, credits), unknown, jnp.ones(tiers), jnp.array(0))

        def ask(key: Array, state: TiflState, round: Array, available: Array) -> Any:
            return jnp.arange(num_clients), available & ((round - 1) % self.interval == 0)

        def receive(state: TiflState, clients: Array, asked: Array, answer: Answer) -> TiflState:
            size = jnp.where(asked & answer.reported, context.data_size, 0.0)
            known = jnp.zeros(tiers).at[tier_of].add(size)
            total = jnp.zeros(tiers).at[tier_of].add(jnp.where(size > 0, size * answer.loss, 0.0))
            loss = jnp.where(known > 0, total / jnp.where(known > 0, known, 1.0), state.loss)
            now, before = loss[state.tier], state.loss[state.tier]
            stuck = (known[state.tier] > 0) & jnp.isfinite(before) & ~(now < before)
            weight = jnp.where(stuck, ranks(loss, state.credits > 0), state.weight)
            return state._replace(loss=loss, weight=weight)

        def select(key: Array, state: TiflState, round: Array, available: Array) -> Selected:
            tier_key, client_key = jax.random.split(key)
            present = jnp.zeros(tiers, bool).at[tier_of].max(available)
            weight = jnp.where(present & (state.credits > 0), state.weight, 0.0)
            weight = jnp.where(jnp.any(weight > 0), weight, present)
            tier = draw_clients(weight, weight > 0, 1, tier_key)[0]
            members = available & (tier_of == tier)
            clients = draw_clients(jnp.ones(num_clients), members, m, client_key)
            return by_data_size(clients, members, context), no_info()

        def update(state: TiflState, selection: Selection, observation: Observation) -> TiflState:
            chosen = jnp.any(selection.active)
            tier = jnp.where(chosen, tier_of[selection.clients[0]], state.tier)
            credits = state.credits.at[tier].add(-chosen.astype(jnp.int32))
            return state._replace(credits=credits, tier=tier)

        share = self.query_share * context.data_size / context.local_samples
        query = Query(ask, receive, "loss", None, lambda latency: share * latency)
        return Policy(lambda: start, select, update, query)


def ranks(loss: Float[Array, " n"], usable: Bool[Array, " n"]) -> Float[Array, " n"]:
    """Return each usable tier's rank by ascending loss (from 1), and 0 for unusable tiers.

    This is ``ChangeProbs`` of TiFL without the common factor. Tied tiers share their mean rank.
    """
    known = jnp.where(usable & ~jnp.isnan(loss), loss, jnp.inf)
    ordered = jnp.sort(known)
    below, through = (jnp.searchsorted(ordered, known, side=side) for side in ("left", "right"))
    return jnp.where(usable, (below + 1 + jnp.minimum(through, jnp.sum(usable))) / 2, 0.0)
