"""The words between a server and a policy: a choice of clients, and what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Selection(NamedTuple):
    """The cohort of a round.

    Attributes:
      clients: int32 [m], distinct client numbers.
      weights: float [m], aggregation weights, equation (2). A weight of 0 marks an empty slot: its
        client does not take part (fewer than m were available).
    """

    clients: Int[Array, " m"]
    weights: Float[Array, " m"]

    @property
    def active(self) -> Array:
        """Bool [m], whether the slot's client takes part."""
        return self.weights > 0


class Info(NamedTuple):
    """Diagnostics of a choice, never fed back; NaN where there is no such thing.

    Attributes:
      energy: the energy (18) of the cohort in the search that found it.
      optimality_gap: energy of the exact optimum minus ``energy``; 0 for exact searches.
      acceptance_rate: share of proposed moves that annealing accepted.
    """

    energy: Float[Array, ""]
    optimality_gap: Float[Array, ""]
    acceptance_rate: Float[Array, ""]


def no_info() -> Info:
    """Diagnostics of a choice that has none."""
    nan = jnp.asarray(jnp.nan)
    return Info(nan, nan, nan)


class Observation(NamedTuple):
    """What the chosen clients returned, in the order of ``Selection.clients``.

    Losses, updates and ``server_loss`` are None unless the policy declares them
    (``PolicyConfig.reads``): a loss says more about the data than the mechanism protects. Without
    learning both losses are 1 and updates have no entries.

    With ``when_spent="drop"`` a client may take part, and take its time, and send nothing: what a
    policy knew of its data then stays as it was.

    Attributes:
      latency: float [m], seconds; of every client that takes part. An empty slot's says nothing of
        its client.
      loss: float [m], mean over the local steps of the mini-batch loss; NaN of one that sends
        nothing.
      square_loss: float [m], mean over the samples used of the squared loss, at the moving weights;
        NaN of a client that sends nothing.
      update: float [m, d], what the server received of each update: flat, clipped and noised.
      received: bool [m], of those that take part, whose losses and updates arrived: all by default.
        A policy that reads them takes those of ``selection.active & observation.received``.
      available: bool [K], who could be chosen: all by default.
      late: bool [m], whose update is averaged in the next round; nobody's by default.
      clock: simulated seconds at the end of the round; NaN if the server keeps none.
      server_loss: (aggregation weights [m]) -> loss on the server's validation samples of the model
        before the round plus these updates, so weighted; None if there are no such samples.
      staleness: int [m], server steps between each client's start and the average; 0 in rounds.
    """

    latency: Float[Array, " m"]
    loss: Float[Array, " m"]
    square_loss: Float[Array, " m"]
    update: Float[Array, "m d"]
    received: Bool[Array, " m"] | bool = True
    available: Bool[Array, " K"] | bool = True
    late: Bool[Array, " m"] | bool = False
    clock: Float[Array, ""] | float = float("nan")
    server_loss: Callable[[Array], Array] | None = None
    staleness: Int[Array, " m"] | int = 0


def store_active(table: Array, clients: Array, values: Array, active: Array) -> Array:
    """A table of all clients with new rows for those that took part; the others keep theirs.

    Args:
      table: [K, ...], a row for each client.
      clients: int [m], distinct client numbers.
      values: [m, ...], or a scalar for all of them, if a row is one number.
      active: bool [m], False for an empty slot, whose client keeps its row.

    Returns:
      [K, ...].
    """
    kept = table[clients]
    took_part = active.reshape(-1, *[1] * (kept.ndim - 1))
    return table.at[clients].set(jnp.where(took_part, values, kept).astype(table.dtype))
