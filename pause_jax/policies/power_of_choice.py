"""Power-of-Choice: the clients of largest loss among random candidates.

Source: Cho, Wang and Joshi, "Towards understanding biased client selection in federated learning",
AISTATS 2022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

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

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class ChoiceState(NamedTuple):
    """State of Power-of-Choice."""

    # What the choice ranks by: the latest known loss of each client; +inf if none.
    loss: Float[Array, " K"]
    candidates: Bool[Array, " K"]  # this round's candidates, if they were asked


class PowerOfChoice(PolicyConfig):
    """The m largest losses among d candidates, drawn by data size without replacement.

    Aggregation is the plain mean, biased by design.

    Attributes:
      loss: what a client is ranked by. ``full`` (pow-d): its loss on all its data, asked before the
        choice. ``batch`` (cpow-d): the same on a mini-batch. ``stale`` (rpow-d): the mean loss of
        its last local training, not asked for; never chosen clients rank first.
      candidates: d, m <= d <= K; 2 m (at most K) if left out.
      schedule: ``constant``; ``half``: d for the first half of the run, then m; ``linear``: d falls
        to m in equal steps (adapow-d).
      batch_size: samples of a mini-batch for ``batch``.
      query_share: a query takes this share of a client's latency of the round. The default counts
        the forward pass as a third of training; ``batch`` takes as much less as it has samples.
    """

    name: ClassVar[str] = "power_of_choice"
    summary: ClassVar[str] = "the m largest losses among d random candidates"
    observes: ClassVar[str] = "loss"
    assumes: ClassVar[str] = "data sizes"
    reference: ClassVar[str] = "Cho et al. 2022"
    alone: ClassVar[bool] = True

    loss: str = static(default="full", choices=("full", "batch", "stale"))
    candidates: int | None = static(default=None, at_least=1, optional=True, kind=int)
    schedule: str = static(default="constant", choices=("constant", "half", "linear"))
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

        def ask(
            key: Array, state: ChoiceState, round: Array, available: Array
        ) -> tuple[Array, Array]:
            clients = draw_clients(context.data_size, available, most, key)
            wanted = self._wanted(round, m, most, context.num_rounds)
            # Clients come in the order of the draws, the available ones first.
            return clients, available[clients] & (jnp.arange(most) < wanted)

        def init() -> ChoiceState:
            return ChoiceState(jnp.full(num_clients, jnp.inf), jnp.zeros(num_clients, bool))

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
            # A model that has diverged answers NaN: nothing is worse.
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
            # Of each client's latency, what its answer takes.
            share = self.query_share * samples / context.local_samples
            query = Query(ask, receive, "loss", batch_size, lambda latency: share * latency)
        return Policy(init, select, update, query)

    def _wanted(self, round: Array, m: int, most: int, num_rounds: Array | int) -> Array:
        """Number of candidates d of this round, int32; ``most`` at first, m at last."""
        past = {
            "constant": jnp.zeros(()),
            "half": (2 * round > num_rounds).astype(jnp.float32),
            "linear": (round - 1) / jnp.maximum(num_rounds - 1, 1),
        }[self.schedule]
        return jnp.round(most - past * (most - m)).astype(jnp.int32)
