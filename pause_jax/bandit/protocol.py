"""Messages between a server and a policy: selections, observations and diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int


class Selection(NamedTuple):
    """Cohort selected for a round, with its aggregation weights.

    Attributes:
      clients: int32 [m], distinct client numbers.
      weights: float [m], aggregation weights (PAUSE, Eq. 2). A weight of 0 marks an empty slot, for
        example if fewer than m clients are available. A client in an empty slot does not take part.
    """

    clients: Int[Array, " m"]
    weights: Float[Array, " m"]

    @property
    def active(self) -> Array:
        """Mask of the slots whose clients take part, bool [m]."""
        return self.weights > 0


class Info(NamedTuple):
    """Diagnostics of a selection, used only for recording. Undefined entries are NaN.

    Attributes:
      energy: cohort energy (PAUSE, Eq. 18), computed by the search that selected the cohort.
      optimality_gap: energy of the exact optimum minus ``energy`` (0 for exact searches).
      acceptance_rate: fraction of annealing steps in which the proposed move was accepted.
    """

    energy: Float[Array, ""]
    optimality_gap: Float[Array, ""]
    acceptance_rate: Float[Array, ""]


def no_info() -> Info:
    """Return all-NaN diagnostics for a selection made without a search."""
    nan = jnp.asarray(jnp.nan)
    return Info(nan, nan, nan)


class Observation(NamedTuple):
    """Feedback from the selected clients. Arrays [m] are in the order of ``Selection.clients``.

    Losses, updates and ``server_loss`` are None unless the policy declares them in
    ``PolicyConfig.reads``. (Losses are sent without noise, so they can reveal private data.)
    If no model is trained, ``loss`` and ``square_loss`` are 1, and ``update`` has no entries.

    With ``when_spent="drop"``, a client whose budget is spent occupies its slot for its usual
    latency but sends nothing, so its entry in ``received`` is False.

    Attributes:
      latency: float [m], seconds that the server waited for each client. The entries of empty
        slots are finite but meaningless.
      loss: float [m], mini-batch loss averaged over the local steps, or NaN if the client's update
        does not arrive in time.
      square_loss: float [m], mean squared loss over the samples of all local steps, computed with
        the model before each step, or NaN where ``loss`` is NaN.
      update: float [m, d], flattened updates as received by the server, clipped and noised.
      received: bool [m], whether the client's losses and update arrived in time, True by default.
        Mask losses and updates with ``selection.active & observation.received``.
      available: bool [K], whether each client could be selected, True by default.
      late: bool [m], whether each update is late but will enter the next average, False by default.
      clock: simulated time of the observation in seconds, or NaN if the server has no clock.
      server_loss: function from aggregation weights [m] to the validation loss of the previous
        model plus the weighted updates, or None if the server has no validation samples.
      staleness: int [m], server steps from training start to averaging (0 in synchronous rounds).
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
    """Return a table with new rows for the clients in ``active`` slots.

    Args:
      table: [K, ...], one row per client.
      clients: int [m], distinct client numbers.
      values: [m, ...], new rows, or one scalar for all slots if rows are scalars.
      active: bool [m], mask of the slots whose clients get new rows. Other rows do not change.
    """
    kept = table[clients]
    took_part = active.reshape(-1, *[1] * (kept.ndim - 1))
    return table.at[clients].set(jnp.where(took_part, values, kept).astype(table.dtype))
