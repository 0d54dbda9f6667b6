"""TiFL: selection of clients with similar latencies from tiers with large losses.

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
from pause_jax.policies.choose import ask_everyone, by_data_size, draw_clients


class TiflState(NamedTuple):
    """TiFL state."""

    credits: Int[Array, " n"]  # number of rounds in which each tier can still be chosen
    loss: Float[Array, " n"]  # each tier's mean loss at the last check, inf if unknown
    weight: Float[Array, " n"]  # probability of choosing each tier, up to a common factor
    tier: Int[Array, ""]  # tier of the last cohort


class Tifl(PolicyConfig):
    """Random cohort from a random tier of clients with similar latencies.

    The expected latencies divide the clients into tiers of equal size. Every ``interval`` rounds,
    all available clients report the global model's loss. If the last tier's loss has not decreased
    since the previous check, the tiers are ranked by loss. The n tiers that have credits left then
    get probabilities proportional to n, n - 1, ..., 1, and the tier with the largest loss is the
    most probable. In the paper, the tiers are ranked by their test accuracy instead.

    If no tier with credits has available clients, all tiers with available clients are equally
    probable. If the tier has fewer than m available clients, the remaining slots stay empty.

    Attributes:
      tiers: number of tiers, at most K.
      interval: number of rounds between checks.
      credits: number of rounds in which a tier can be chosen, relative to T / n.
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
        credits = jnp.ceil(self.credits * context.num_rounds / tiers).astype(jnp.int32)
        start = TiflState(
            jnp.full(tiers, credits), jnp.full(tiers, jnp.inf), jnp.ones(tiers), jnp.array(0)
        )

        def ask(key: Array, state: TiflState, round: Array, available: Array) -> Any:
            clients, asked = ask_everyone(key, state, round, available)
            return clients, asked & ((round - 1) % self.interval == 0)

        def receive(state: TiflState, clients: Array, asked: Array, answer: Answer) -> TiflState:
            size = jnp.where(asked & answer.reported, context.data_size[clients], 0.0)
            tier = tier_of[clients]
            known = jnp.zeros(tiers).at[tier].add(size)
            total = jnp.zeros(tiers).at[tier].add(jnp.where(size > 0, size * answer.loss, 0.0))
            loss = jnp.where(known > 0, total / jnp.where(known > 0, known, 1.0), state.loss)
            stuck = jnp.any(asked) & (loss[state.tier] >= state.loss[state.tier])
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
    """Return 1 for the usable tier with the smallest loss, 2 for the next, and 0 if not usable.

    This is ``ChangeProbs`` of TiFL without the common factor. Ties go to the slower tier.
    """
    order = jnp.argsort(jnp.where(usable, loss, -jnp.inf))
    rank = jnp.argsort(order) - jnp.sum(~usable) + 1
    return jnp.where(usable, rank, 0).astype(jnp.float32)
