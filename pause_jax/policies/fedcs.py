"""FedCS: greedy selection of clients that can train and upload their models before a deadline.

Source: Nishio and Yonetani, "Client selection for federated learning with heterogeneous resources
in mobile edge", IEEE ICC 2019.
"""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from pause_jax.bandit.protocol import no_info
from pause_jax.base.struct import Sizes, number, static
from pause_jax.policies.base import Answer, Context, Policy, PolicyConfig, Selected
from pause_jax.policies.choose import (
    by_data_size,
    check_candidates,
    draw_clients,
    mask_of,
    num_candidates,
    resource_request,
)


class FedCs(PolicyConfig):
    """Greedy admission of the candidates that lengthen the round least, up to a deadline.

    Randomly drawn candidates report their resources, which determine their expected latencies. A
    client's upload takes a fraction ``upload_share`` of its expected latency, and local training
    takes the rest. Clients upload one at a time while others are still training. (Only the
    selection rule assumes sequential uploads. Simulated uploads run in parallel.) At most m clients
    are accepted, and the remaining slots stay empty.

    Attributes:
      candidates: number of clients queried per round, from m to K (default: min(2 m, K)).
      deadline: T_round in seconds, excluding the time for selection, aggregation and multicast.
      upload_share: fraction of a client's latency spent on the upload.
      query_seconds: duration of each round's resource request, in seconds.
    """

    name: ClassVar[str] = "fedcs"
    summary: ClassVar[str] = "as many clients as can finish by a deadline, chosen greedily"
    observes: ClassVar[str] = "reported resources"
    assumes: ClassVar[str] = "expected latencies of candidates"
    reference: ClassVar[str] = "Nishio and Yonetani 2019"
    alone: ClassVar[bool] = True

    candidates: int | None = static(default=None, at_least=1, optional=True, kind=int)
    deadline: float = number(default=1.0, above=0)
    upload_share: float = number(default=0.2, at_least=0, at_most=1)
    query_seconds: float = number(default=0.01, at_least=0)

    def check(self, path: str, sizes: Sizes) -> None:
        check_candidates(path, self.candidates, sizes)

    def build(self, context: Context) -> Policy:
        num_clients, m = context.num_clients, context.num_selected
        count = num_candidates(self.candidates, context)
        upload = self.upload_share * context.expected_latency
        compute = context.expected_latency - upload

        # The state is the mask, bool [K], of the candidates queried in this round.
        def ask(key: Array, asked: Array, round: Array, available: Array) -> tuple[Array, Array]:
            clients = draw_clients(jnp.ones(num_clients), available, count, key)
            return clients, available[clients]

        def receive(state: Array, clients: Array, asked: Array, answer: Answer) -> Array:
            return mask_of(clients, asked, num_clients)

        def select(key: Array, asked: Array, round: Array, available: Array) -> Selected:
            # The random order breaks ties.
            order = draw_clients(jnp.ones(num_clients), asked, count, key)
            accepted = greedy(compute[order], upload[order], asked[order], m, self.deadline)
            accepted_first = order[jnp.argsort(~accepted, stable=True)]
            chosen = mask_of(order, accepted, num_clients)
            return by_data_size(accepted_first[:m], chosen, context), no_info()

        query = resource_request(ask, receive, self.query_seconds)
        return Policy(lambda: jnp.zeros(num_clients, bool), select, lambda state, *_: state, query)


def greedy(
    compute: Float[Array, " d"],
    upload: Float[Array, " d"],
    usable: Bool[Array, " d"],
    num_selected: int,
    deadline: Array | float,
) -> Bool[Array, " d"]:
    """Return a mask of the (at most m) usable candidates that Algorithm 3 of FedCS accepts.

    Clients compute in parallel from the start and upload one after another. If the accepted clients
    finish after Theta seconds, a candidate adds ``upload`` + max(0, ``compute`` - Theta) seconds.
    Each step examines the candidate that adds the least time. The candidate is accepted if the
    round would still end before the deadline, and dropped otherwise.
    """

    def look_at_next(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, accepted, elapsed = carry  # bool [d], bool [d], Theta
        added = upload + jnp.maximum(0.0, compute - elapsed)
        best = jnp.argmin(jnp.where(left, added, jnp.inf))
        end = elapsed + added[best]
        fits = left[best] & (end < deadline) & (jnp.sum(accepted) < num_selected)
        return (
            left.at[best].set(False),
            accepted.at[best].set(accepted[best] | fits),
            jnp.where(fits, end, elapsed),
        )

    start = (usable, jnp.zeros_like(usable), jnp.zeros(()))
    return lax.fori_loop(0, usable.shape[0], look_at_next, start)[1]
