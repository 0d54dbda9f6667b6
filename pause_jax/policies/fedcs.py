"""FedCS: as many clients as fit into a deadline, by known update and upload times.

Source: Nishio and Yonetani, "Client selection for federated learning with heterogeneous resources
in mobile edge", IEEE ICC 2019.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax import Array, lax

from pause_jax.bandit import Info, Observation, Selection, no_info
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, Query
from pause_jax.policies.choose import by_data_size, check_candidates, draw_clients, num_candidates
from pause_jax.struct import Sizes, number, static


class FedCs(PolicyConfig):
    """Greedy: the candidate that lengthens the round least, as long as the deadline holds.

    A random set of candidates is asked for its resources, so its times are known: the update takes
    (1 - ``upload_share``) of the expected latency, the upload the rest. Uploads follow one another
    while others still compute. Accepts at most m clients; the other slots stay empty.

    The rule's own time line has sequential uploads; the simulated round lasts as long as its
    slowest client, as for every policy here.

    Attributes:
      candidates: clients asked a round, at least m; 2 m (at most K) if left out.
      deadline: T_round, seconds.
      upload_share: share of a client's latency that is upload.
      overhead: T_cs + T_agg + T^d, seconds of a round for selection, aggregation and multicast.
      query_seconds: what the resource request costs, seconds a round.
    """

    name: ClassVar[str] = "fedcs"
    summary: ClassVar[str] = "greedily as many clients as fit into a deadline"
    observes: ClassVar[str] = "reported resources"
    assumes: ClassVar[str] = "expected latencies of candidates"
    reference: ClassVar[str] = "Nishio and Yonetani 2019"

    candidates: int | None = static(default=None, at_least=1, optional=True, kind=int)
    deadline: float = number(default=1.0, above=0)
    upload_share: float = number(default=0.2, at_least=0, at_most=1)
    overhead: float = number(default=0.0, at_least=0)
    query_seconds: float = number(default=0.01, at_least=0)

    def check(self, path: str, sizes: Sizes) -> None:
        check_candidates(path, self.candidates, sizes)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        count = num_candidates(self.candidates, context)
        upload = self.upload_share * context.expected_latency
        compute = context.expected_latency - upload

        def ask(key: Array, state: Array, round: Array, available: Array) -> tuple[Array, Array]:
            clients = draw_clients(jnp.ones(num_clients), available, count, key)
            return clients, available[clients]

        def hear(state: Array, clients: Array, asked: Array, answer: Answer) -> Array:
            return jnp.zeros(num_clients, bool).at[clients].set(asked)

        def select(
            key: Array, state: Array, round: Array, available: Array
        ) -> tuple[Selection, Info]:
            order = draw_clients(jnp.ones(num_clients), state, count, key)
            accepted = greedy(
                compute[order], upload[order], state[order], m, self.deadline - self.overhead
            )
            chosen = jnp.zeros(num_clients, bool).at[order].set(accepted)
            clients = order[jnp.argsort(~accepted, stable=True)][:m]
            return by_data_size(clients, chosen, context), no_info()

        def update(state: Array, selection: Selection, observation: Observation) -> Array:
            return state

        query = Query(
            ask,
            hear,
            wants="features",
            batch_size=None,
            seconds=lambda latency: jnp.full_like(latency, self.query_seconds),
        )
        return Policy(lambda: jnp.zeros(num_clients, bool), select, update, query)


def greedy(
    compute: Array, upload: Array, usable: Array, num_selected: int, deadline: Array | float
) -> Array:
    """Algorithm 3 of FedCS.

    Args:
      compute: float [d], t^UD, seconds of a candidate's update.
      upload: float [d], t^UL, seconds of its upload.
      usable: bool [d], who can be accepted.
      num_selected: accept so many at most.
      deadline: seconds for updates and uploads together.

    Returns:
      bool [d], who was accepted.
    """

    def step(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, accepted, elapsed = carry
        longer = upload + jnp.maximum(0.0, compute - elapsed)
        best = jnp.argmin(jnp.where(left, longer, jnp.inf))
        end = elapsed + longer[best]
        fits = left[best] & (end < deadline) & (jnp.sum(accepted) < num_selected)
        return (
            left.at[best].set(False),
            accepted.at[best].set(accepted[best] | fits),
            jnp.where(fits, end, elapsed),
        )

    start = (usable, jnp.zeros_like(usable), jnp.zeros(()))
    return lax.fori_loop(0, usable.shape[0], step, start)[1]
