"""Power-of-Choice: selection of the clients with the largest losses among random candidates.

Source: Cho, Wang and Joshi, "Towards understanding biased client selection in federated learning",
AISTATS 2022.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from pause_jax.bandit.protocol import Observation, Selection, no_info, store_active
from pause_jax.base.struct import Sizes, number, static
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, Query, Selected
from pause_jax.policies.choose import (
    check_candidates,
    draw_clients,
    equal_weights,
    mask_of,
    num_candidates,
    top_clients,
)


class ChoiceState(NamedTuple):
    """Power-of-Choice state."""

    # Ranking criterion: each client's latest known loss, or +inf if none is known.
    loss: Float[Array, " K"]
    candidates: Bool[Array, " K"]  # candidates queried in this round


class PowerOfChoice(PolicyConfig):
    """Selection of the m clients with the largest losses among d random candidates.

    Candidates are drawn without replacement, weighted by data size. Aggregation weights are equal.

    Attributes:
      loss: ranking criterion. ``full`` (pow-d) queries the loss on all local data, and ``batch``
        (cpow-d) queries it on a mini-batch. ``stale`` (rpow-d) uses the mean loss of the last local
        training and sends no query. Clients whose loss is unknown rank first.
      candidates: d, number of candidates, from m to K (default: min(2 m, K)).
      schedule: ``constant``, or ``linear`` to decrease d linearly to m over the run (adapow-d).
      batch_size: mini-batch size for ``batch``.
      query_share: time to evaluate a sample, relative to the client's latency per training sample.
        The default assumes that a forward pass takes 1/3 as long as a training step.
    """

    name: ClassVar[str] = "power_of_choice"
    summary: ClassVar[str] = "the m largest losses among d random candidates"
    observes: ClassVar[str] = "loss"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Cho et al. 2022"
    alone: ClassVar[bool] = True

    loss: str = static(default="full", choices=("full", "batch", "stale"))
    candidates: int | None = static(default=None, at_least=1, optional=True, kind=int)
    schedule: str = static(default="constant", choices=("constant", "linear"))
    batch_size: int = static(default=64, at_least=1)
    query_share: float = number(default=1 / 3, at_least=0)

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("loss",) if self.loss == "stale" else ("answer.loss",)

    def check(self, path: str, sizes: Sizes) -> None:
        check_candidates(path, self.candidates, sizes)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        most = num_candidates(self.candidates, context)
        start = ChoiceState(jnp.full(num_clients, jnp.inf), jnp.zeros(num_clients, bool))

        def ask(
            key: Array, state: ChoiceState, round: Array, available: Array
        ) -> tuple[Array, Array]:
            clients = draw_clients(context.data_size, available, most, key)
            wanted = jnp.asarray(most)
            if self.schedule == "linear":
                past = (round - 1) / jnp.maximum(context.num_rounds - 1, 1)
                wanted = jnp.round(most - past * (most - m)).astype(jnp.int32)
            # Clients are in draw order, with available clients first.
            return clients, available[clients] & (jnp.arange(most) < wanted)

        def receive(
            state: ChoiceState, clients: Array, asked: Array, answer: Answer
        ) -> ChoiceState:
            loss = store_active(state.loss, clients, answer.loss, asked & answer.reported)
            return ChoiceState(loss, mask_of(clients, asked, num_clients))

        def select(key: Array, state: ChoiceState, round: Array, available: Array) -> Selected:
            draw_key, tie_key = jax.random.split(key)
            candidates = state.candidates
            if self.loss == "stale":
                candidates = mask_of(*ask(draw_key, state, round, available), num_clients)
            # Treat NaN, the loss of a diverged model, as the largest loss.
            loss = jnp.where(jnp.isnan(state.loss), jnp.inf, state.loss)
            clients = top_clients(loss, candidates, m, tie_key)
            return equal_weights(clients, candidates[clients]), no_info()

        def update(
            state: ChoiceState, selection: Selection, observation: Observation
        ) -> ChoiceState:
            if self.loss != "stale":
                return state
            received = selection.active & observation.received
            loss = store_active(state.loss, selection.clients, observation.loss, received)
            return state._replace(loss=loss)

        query = None
        if self.loss != "stale":
            batch_size = self.batch_size if self.loss == "batch" else None
            samples = context.data_size
            if batch_size is not None:
                samples = jnp.minimum(samples, batch_size)
            share = self.query_share * samples / context.local_samples
            query = Query(ask, receive, "loss", batch_size, lambda latency: share * latency)
        return Policy(lambda: start, select, update, query)
